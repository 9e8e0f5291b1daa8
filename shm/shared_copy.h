// Copies of bytes that another process may be writing at this moment. Each aligned word is moved
// with an atomic access, so that a copy that meets a writer is torn, never undefined; what
// was copied is believed only after its checksum holds. Loads acquire and stores release, so that
// what the caller reads after a copy, or wrote before one, keeps its place without a fence (which
// ThreadSanitizer cannot follow).
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace optlease {

// `from` is 8-byte aligned; `to` needs no alignment. The mapping may be read-only.
inline void copy_from_shared(void* to, const void* from, size_t bytes) {
  // std::atomic_ref of a const type is C++26; loads of eight aligned bytes never write.
  auto* words = const_cast<uint64_t*>(static_cast<const uint64_t*>(from));
  auto* out = static_cast<char*>(to);
  for (size_t at = 0; at < bytes; at += sizeof(uint64_t)) {
    const uint64_t word =
        std::atomic_ref<uint64_t>(words[at / sizeof word]).load(std::memory_order_acquire);
    std::memcpy(out + at, &word, bytes - at < sizeof word ? bytes - at : sizeof word);
  }
}

// `to` is 8-byte aligned and owns whole words: the last word's unused bytes become zero.
inline void copy_to_shared(void* to, const void* from, size_t bytes) {
  auto* words = static_cast<uint64_t*>(to);
  const auto* in = static_cast<const char*>(from);
  for (size_t at = 0; at < bytes; at += sizeof(uint64_t)) {
    uint64_t word = 0;
    std::memcpy(&word, in + at, bytes - at < sizeof word ? bytes - at : sizeof word);
    std::atomic_ref<uint64_t>(words[at / sizeof word]).store(word, std::memory_order_release);
  }
}

}  // namespace optlease
