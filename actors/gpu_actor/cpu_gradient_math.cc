#include <cstring>

#include "actors/gpu_actor/gradient_math.h"
#include "kernels/random.h"

namespace optlease {
namespace {

class CpuGradientMath final : public GradientMath {
 public:
  Status fill_synthetic(void* out, DType dtype, const SyntheticKey& key,
                        uint64_t elements) override {
    fill_synthetic_gradient(out, dtype, key.seed, key.step, key.rank.value, key.space, 0, elements);
    return Status::ok();
  }

  std::span<std::byte> staging() override { return {}; }

  Status put(void* out, const void* host, uint64_t bytes) override {
    std::memcpy(out, host, bytes);
    return Status::ok();
  }

  Result<GradStats> stats(const float* shard, uint64_t first_element, uint64_t elements,
                          float pre_scale, const GradSums& into) override {
    return grad_stats(shard, first_element, elements, pre_scale, into);
  }
};

}  // namespace

std::unique_ptr<GradientMath> make_cpu_gradient_math() {
  return std::make_unique<CpuGradientMath>();
}

}  // namespace optlease
