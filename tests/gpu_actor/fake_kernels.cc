// The kernels of the fake GPU (fake_gpu.h): the CPU's functions, in stream order.
#include "kernels/adam_cpu.h"
#include "kernels/adam_cuda.h"
#include "kernels/checksum.h"
#include "kernels/random.h"
#include "kernels/reduce_cpu.h"
#include "kernels/reduce_cuda.h"
#include "tests/gpu_actor/fake_gpu_world.h"

namespace optlease {

using fake::after_launch;
using fake::enqueue;

cudaError_t sum_shards_cuda(float* out, const void* const* inputs, uint32_t input_count,
                            DType dtype, uint64_t elements, cudaStream_t stream) {
  enqueue(stream, [=, at = std::vector<const void*>(inputs, inputs + input_count)] {
    sum_shards(out, at.data(), input_count, dtype, elements);
    return true;
  });
  return after_launch("sum_shards_cuda");
}

cudaError_t grad_block_sums_cuda(double* sums, uint64_t* nonfinite, const float* grad,
                                 uint64_t first_element, uint64_t elements, float pre_scale,
                                 const GradSums& into, cudaStream_t stream) {
  enqueue(stream, [=] {
    *nonfinite += grad_block_sums(sums, grad, first_element, elements, pre_scale);
    GradStats unused;
    if (into.sums != nullptr)
      add_grad_stats(&unused, grad, first_element, elements, pre_scale, into);
    return true;
  });
  return after_launch("grad_block_sums_cuda");
}

cudaError_t fill_synthetic_gradient_cuda(void* out, DType dtype, uint64_t seed, int64_t step,
                                         uint32_t rank, uint32_t space, uint64_t first_element,
                                         uint64_t elements, cudaStream_t stream) {
  enqueue(stream, [=] {
    fill_synthetic_gradient(out, dtype, seed, step, rank, space, first_element, elements);
    return true;
  });
  return after_launch("fill_synthetic_gradient_cuda");
}

cudaError_t preload_reduce_cuda() { return fake::fate("preload_reduce_cuda"); }
cudaError_t preload_adam_cuda() { return fake::fate("preload_adam_cuda"); }
cudaError_t prepare_adam_cuda(const AdamCudaTarget&) { return fake::fate("prepare_adam_cuda"); }

cudaError_t adam_update_cuda(const AdamCudaTarget& target, const AdamChunk& chunk,
                             const AdamFactors& factors, AdamCudaResult* result) {
  enqueue(target.stream, [=] {
    const ChunkSums sums = adam_update(chunk, factors);
    *result = {sums.read, sums.written, sums.grad, 1000};
    return true;
  });
  return after_launch("adam_update_cuda");
}

cudaError_t republish_cuda(const AdamCudaTarget& target, const AdamChunk& chunk,
                           AdamCudaResult* result) {
  enqueue(target.stream, [=] {
    const uint64_t sum = republish(chunk);
    *result = {sum, sum, 0, 1000};
    return true;
  });
  return after_launch("republish_cuda");
}

cudaError_t sum_gradient_cuda(const AdamCudaTarget& target, const float* grad, uint64_t elements,
                              uint64_t first_word, AdamCudaResult* result) {
  enqueue(target.stream, [=] {
    *result = {0, 0, checksum_words(grad, elements, first_word), 1000};
    return true;
  });
  return after_launch("sum_gradient_cuda");
}

}  // namespace optlease
