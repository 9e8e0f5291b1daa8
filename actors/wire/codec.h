// Builds and reads frames of shm/contract/messages.h: header, body, payload.
#pragma once

#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "shm/contract/messages.h"

namespace optlease {

// Who speaks; the codec fills the rest of the header.
struct Speaker {
  uint32_t rank = 0;
  uint64_t incarnation = 0;
  uint64_t store_epoch = 0;
};

std::string encode_frame(const Speaker& speaker, MessageKind kind, uint64_t sequence,
                         const void* body, size_t body_bytes, std::string_view payload);

template <class Body>
std::string encode(const Speaker& speaker, MessageKind kind, uint64_t sequence, const Body& body,
                   std::string_view payload = {}) {
  return encode_frame(speaker, kind, sequence, &body, sizeof body, payload);
}
inline std::string encode_empty(const Speaker& speaker, MessageKind kind, uint64_t sequence) {
  return encode_frame(speaker, kind, sequence, nullptr, 0, {});
}

// A frame that passed why_invalid_frame. Views point into the frame.
struct Decoded {
  MessageHeader header;
  MessageKind kind;
  std::string_view body;
  std::string_view payload;

  template <class Body>
  Body as() const {  // REQUIRES: Body is the body struct of kind
    Body out;
    OPTLEASE_CHECK(body.size() == sizeof out, "%s has a body of %zu bytes", name_of(kind),
                   body.size());
    std::memcpy(&out, body.data(), sizeof out);
    return out;
  }
  template <class Entry>
  std::vector<Entry> entries() const {
    std::vector<Entry> out(payload.size() / sizeof(Entry));
    if (!out.empty()) std::memcpy(out.data(), payload.data(), out.size() * sizeof(Entry));
    return out;
  }
};

// InvalidArgument with the broken rule where the frame is none of ours.
Result<Decoded> decode(std::string_view frame);

}  // namespace optlease
