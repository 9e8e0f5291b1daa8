// What is computed on a rank's gradient memory outside the update rule: synthetic gradients, values
// that come from files, and the shard's share of the norm with its chunks' checksums. The CPU
// device's gradients are host memory, the CUDA device's are HBM; everything above this line is the
// same code for both, and the bits are the same too. Used by the collective worker and the gradient
// sources, on one thread. It exchanges nothing (collectives.h) and reads no file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "kernels/reduce_cpu.h"
#include "shm/contract/dtype.h"
#include "shm/contract/ids.h"
#include "shm/contract/status.h"

namespace optlease {

// Which synthetic gradient: the arguments of kernels/random.h.
struct SyntheticKey {
  uint64_t seed = 0;
  Step step = 0;
  Rank rank;
  uint32_t space = 0;
};

// Calls return when their work is done. Errors are the device's; the CPU has none.
class GradientMath {
 public:
  virtual ~GradientMath() = default;

  // Elements [0, elements) of the whole space's gradient at `out`.
  virtual Status fill_synthetic(void* out, DType dtype, const SyntheticKey& key,
                                uint64_t elements) = 0;

  // Host memory, 16-byte aligned, in which to prepare what put() takes. Empty where gradient memory
  // is the host's own and may be written in place.
  virtual std::span<std::byte> staging() = 0;
  // Copies host bytes into gradient memory.
  virtual Status put(void* out, const void* host, uint64_t bytes) = 0;

  // grad_stats() of a shard (kernels/reduce_cpu.h), and the checksums of its chunks: into.sums is
  // host memory.
  virtual Result<GradStats> stats(const float* shard, uint64_t first_element, uint64_t elements,
                                  float pre_scale, const GradSums& into) = 0;

  // Calls under way that wait for a device return Cancelled, later ones too. Any thread; for the
  // end of the process.
  virtual void stop() {}
};

std::unique_ptr<GradientMath> make_cpu_gradient_math();
// In builds with CUDA. `device` is a CUDA ordinal. Holds about 2 MiB of it.
Result<std::unique_ptr<GradientMath>> make_cuda_gradient_math(int device);

}  // namespace optlease
