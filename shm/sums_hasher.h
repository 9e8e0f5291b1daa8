// The digest of a rank's summed gradients (SumsDigestKind::kXxh3): XXH3-64 over the FP32 bytes
// of its shards, spaces ascending, without the padding between them. Used by the GPU actor and by
// tests. It knows no step and compares nothing.
#pragma once

#include <cstdint>
#include <memory>

namespace optlease {

// Any cut of the bytes into pieces gives the same digest. Not thread-safe.
class SumsHasher {
 public:
  SumsHasher();
  ~SumsHasher();
  SumsHasher(const SumsHasher&) = delete;
  SumsHasher& operator=(const SumsHasher&) = delete;

  void add(const void* data, uint64_t bytes);
  uint64_t digest() const;  // of what was added so far

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace optlease
