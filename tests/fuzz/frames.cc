#include "tests/fuzz/frames.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "actors/wire/codec.h"

namespace optlease::fuzz {
namespace {

constexpr uint16_t kKindMax = 1024;  // beyond the last

template <class T>
void put_at(std::string* frame, size_t offset, const T& value) {
  std::memcpy(frame->data() + offset, &value, sizeof value);
}

// Where the body has the number of bytes or entries that follow it, and of what size each; no size:
// nothing follows that kind, or what follows is not counted.
struct Count {
  size_t offset = 0;
  size_t bytes_each = 0;
};

Count count_of(MessageKind kind) {
  using K = MessageKind;
  if (kind == K::kStepReady) return {offsetof(StepReadyBody, blob_bytes), 1};
  if (kind == K::kAttached) return {offsetof(AttachedBody, blob_bytes), 1};
  if (kind == K::kStepRequest) return {offsetof(StepRequestBody, blob_bytes), 1};
  if (kind == K::kRefused) return {offsetof(RefusedBody, text_bytes), 1};
  if (kind == K::kStepReply) return {offsetof(StepReplyBody, text_bytes), 1};
  if (kind == K::kCommitRequest) return {offsetof(CommitRequestBody, entry_count), 16};
  if (kind == K::kLeaseGrant) return {offsetof(LeaseGrantBody, entry_count), 24};
  if (kind == K::kStatusReply) return {offsetof(StatusReplyBody, rank_count), 40};
  return {};
}
static_assert(sizeof(SlotEntry) == 16 && sizeof(GrantEntry) == 24 && sizeof(RankStatus) == 40);

// A body that why_invalid_frame() takes.
std::string valid_body(MessageKind kind) {
  std::string body(body_bytes_of(kind), '\0');
  const auto set = [&](size_t offset, const auto& value) { put_at(&body, offset, value); };
  if (kind == MessageKind::kStepReady) set(offsetof(StepReadyBody, step), Step{1});
  if (kind == MessageKind::kPrepare) set(offsetof(StepBody, step), Step{1});
  if (kind == MessageKind::kLeaseRequest) set(offsetof(LeaseRequestBody, chunk_count), 2u);
  if (kind == MessageKind::kCommitRequest) set(offsetof(CommitRequestBody, chunk_count), 2u);
  if (kind == MessageKind::kStepRequest) {
    set(offsetof(StepRequestBody, step), Step{1});
    set(offsetof(StepRequestBody, grad_scale), 1.0);
  }
  if (kind == MessageKind::kStepRecord) {
    set(offsetof(StepRecordBody, record), valid_record(1));
    set(offsetof(StepRecordBody, sums), make_sums_digest(1, 7));
  }
  return body;
}

std::string valid_payload(MessageKind kind) {
  if (kind == MessageKind::kGoReduce || kind == MessageKind::kGoGather) return {"\1\0", 2};
  return std::string(2 * count_of(kind).bytes_each, '\0');
}

}  // namespace

const std::vector<MessageKind>& every_kind() {
  static const std::vector<MessageKind> kinds = [] {
    std::vector<MessageKind> found;
    for (uint16_t number = 0; number < kKindMax; ++number) {
      const auto kind = static_cast<MessageKind>(number);
      if (body_bytes_of(kind) != UINT32_MAX) found.push_back(kind);
    }
    return found;
  }();
  return kinds;
}

StepRecord valid_record(Step step) {
  StepRecord record{};
  record.step = step;
  record.update_count = step;
  record.group_count = 1;
  record.groups[0] = {.lr = 1e-3,
                      .beta1 = 0.9,
                      .beta2 = 0.999,
                      .eps = 1e-8,
                      .weight_decay = 0.1,
                      .rule = static_cast<uint32_t>(Rule::kAdamW),
                      .reserved_zero = 0};
  record.grad_norm = 1.5;
  record.grad_coefficient = 1;
  record.checksum = checksum_of(record);
  return record;
}

void set_lengths(std::string* frame) {
  if (frame->size() < sizeof(MessageHeader)) return;
  put_at(frame, offsetof(MessageHeader, bytes), static_cast<uint32_t>(frame->size()));
  MessageHeader header;
  std::memcpy(&header, frame->data(), sizeof header);
  const auto kind = static_cast<MessageKind>(header.kind);
  const Count count = count_of(kind);
  const size_t before = sizeof header + body_bytes_of(kind);
  if (count.bytes_each == 0 || frame->size() < before) return;
  put_at(frame, sizeof header + count.offset,
         static_cast<uint32_t>((frame->size() - before) / count.bytes_each));
}

std::string repaired(std::string_view bytes) {
  std::string frame(bytes);
  if (frame.size() < sizeof(MessageHeader)) return frame;
  put_at(&frame, offsetof(MessageHeader, magic), kMessageMagic);
  put_at(&frame, offsetof(MessageHeader, version), kProtocolVersion);
  uint16_t kind = 0;
  std::memcpy(&kind, frame.data() + offsetof(MessageHeader, kind), sizeof kind);
  if (body_bytes_of(static_cast<MessageKind>(kind)) == UINT32_MAX) {
    kind = static_cast<uint16_t>(every_kind()[kind % every_kind().size()]);
    put_at(&frame, offsetof(MessageHeader, kind), kind);
  }
  set_lengths(&frame);
  return frame;
}

std::vector<std::string> frame_of_every_kind() {
  std::vector<std::string> frames;
  for (const MessageKind kind : every_kind()) {
    const std::string body = valid_body(kind);
    const std::string payload = valid_payload(kind);
    std::string frame(sizeof(MessageHeader), '\0');
    put_at(&frame, offsetof(MessageHeader, kind), static_cast<uint16_t>(kind));
    const std::string lengths = repaired(frame + body + payload);
    frames.push_back(encode_frame({.rank = 1, .incarnation = 2, .store_epoch = 3}, kind, 4,
                                  lengths.data() + sizeof(MessageHeader), body.size(), payload));
  }
  return frames;
}

}  // namespace optlease::fuzz
