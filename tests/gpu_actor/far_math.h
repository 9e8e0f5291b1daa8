// Gradient math for tests of what stands on it: the CPU's, and one whose memory the host cannot
// write, as a GPU's.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "actors/gpu_actor/gradient_math.h"

namespace optlease {

inline GradientMath* cpu_math() {
  static const std::unique_ptr<GradientMath> math = make_cpu_gradient_math();
  return math.get();
}

// Gradient memory that the host cannot write: only put() reaches it, from a small staging.
class FarMath final : public GradientMath {
 public:
  explicit FarMath(size_t staging_bytes) : staging_(staging_bytes) {}
  Status fill_synthetic(void* out, DType dtype, const SyntheticKey& key,
                        uint64_t elements) override {
    return cpu_math()->fill_synthetic(out, dtype, key, elements);
  }
  std::span<std::byte> staging() override { return staging_; }
  Status put(void* out, const void* host, uint64_t bytes) override {
    EXPECT_LE(bytes, staging_.size());
    puts_ += 1;
    return cpu_math()->put(out, host, bytes);
  }
  Result<GradStats> stats(const float* shard, uint64_t first, uint64_t elements, float scale,
                          const GradSums& into) override {
    return cpu_math()->stats(shard, first, elements, scale, into);
  }
  uint64_t puts_ = 0;

 private:
  std::vector<std::byte> staging_;
};

}  // namespace optlease
