#include "actors/wire/codec.h"

namespace optlease {

std::string encode_frame(const Speaker& speaker, MessageKind kind, uint64_t sequence,
                         const void* body, size_t body_bytes, std::string_view payload) {
  OPTLEASE_CHECK(body_bytes == body_bytes_of(kind), "%s has a body of %u bytes, not %zu",
                 name_of(kind), body_bytes_of(kind), body_bytes);
  const uint64_t bytes = sizeof(MessageHeader) + body_bytes + payload.size();
  OPTLEASE_CHECK(bytes <= kMessageBytesMax, "a %s of %llu bytes passes the limit of %u",
                 name_of(kind), static_cast<unsigned long long>(bytes), kMessageBytesMax);
  MessageHeader header{};
  header.magic = kMessageMagic;
  header.version = kProtocolVersion;
  header.kind = static_cast<uint16_t>(kind);
  header.bytes = static_cast<uint32_t>(bytes);
  header.rank = speaker.rank;
  header.incarnation = speaker.incarnation;
  header.store_epoch = speaker.store_epoch;
  header.sequence = sequence;

  std::string frame;
  frame.reserve(bytes);
  frame.append(reinterpret_cast<const char*>(&header), sizeof header);
  if (body_bytes > 0) frame.append(static_cast<const char*>(body), body_bytes);
  frame.append(payload);
  const char* broken_rule = why_invalid_frame(frame.data(), frame.size());
  OPTLEASE_CHECK(broken_rule == nullptr, "a %s of rank %u: %s", name_of(kind), speaker.rank,
                 broken_rule);
  return frame;
}

Result<Decoded> decode(std::string_view frame) {
  if (const char* broken_rule = why_invalid_frame(frame.data(), frame.size())) {
    return Status(StatusCode::kInvalidArgument,
                  format("a frame of %zu bytes: %s", frame.size(), broken_rule));
  }
  Decoded out;
  std::memcpy(&out.header, frame.data(), sizeof out.header);
  out.kind = static_cast<MessageKind>(out.header.kind);
  const uint32_t body_bytes = body_bytes_of(out.kind);
  out.body = frame.substr(sizeof(MessageHeader), body_bytes);
  out.payload = frame.substr(sizeof(MessageHeader) + body_bytes);
  return out;
}

}  // namespace optlease
