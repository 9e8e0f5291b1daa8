#include "kernels/reduce_cpu.h"

#include <algorithm>

#include "kernels/cpu_loops.h"
#include "shm/contract/status.h"

namespace optlease {
namespace {

void check_dtype(DType dtype) {
  OPTLEASE_CHECK(bytes_of(dtype) != 0, "dtype %u", static_cast<unsigned>(dtype));
}

// Calls visit(grad, elements) for each block, ascending: the first ends at a block boundary of the
// space, not of the range.
template <class Visit>
void for_each_block(const float* grad, uint64_t first_element, uint64_t elements, Visit visit) {
  OPTLEASE_CHECK(first_element % kGradFirstElementAlign == 0, "first element %llu",
                 static_cast<unsigned long long>(first_element));
  uint64_t at = 0;
  while (at < elements) {
    const uint64_t room = kGradBlockElements - (first_element + at) % kGradBlockElements;
    const uint64_t count = std::min(room, elements - at);
    visit(grad + at, count);
    at += count;
  }
}

void check_grad_sums(const GradSums& into) {
  OPTLEASE_CHECK(into.sums == nullptr || (into.chunk_elements != 0 &&
                                          into.chunk_elements % kGradFirstElementAlign == 0 &&
                                          into.skip % kGradFirstElementAlign == 0),
                 "chunks of %llu elements, %llu skipped",
                 static_cast<unsigned long long>(into.chunk_elements),
                 static_cast<unsigned long long>(into.skip));
}

// One block, which may lie in several chunks; it begins `at` elements behind grad[0].
void sum_block(const CpuLoops& loops, const GradSums& into, const float* block, uint64_t at,
               uint64_t count) {
  for (uint64_t done = 0; done < count;) {
    const uint64_t place = into.skip + at + done;
    const uint64_t room = into.chunk_elements - place % into.chunk_elements;
    const uint64_t part = std::min(room, count - done);
    into.sums[place / into.chunk_elements] +=
        loops.checksum(block + done, part, into.first_word + at + done);
    done += part;
  }
}

}  // namespace

void sum_shards(float* out, const void* const* inputs, uint32_t input_count, DType dtype,
                uint64_t elements) {
  check_dtype(dtype);
  OPTLEASE_CHECK(input_count >= 1, "no inputs to sum %llu elements of",
                 static_cast<unsigned long long>(elements));
  OPTLEASE_CHECK(inputs[0] != out || dtype == DType::kF32, "in place on %s", name_of(dtype));
  cpu_loops().sum_shards(out, inputs, input_count, dtype, elements);
}

void add_grad_stats(GradStats* total, const float* grad, uint64_t first_element, uint64_t elements,
                    float pre_scale, const GradSums& into) {
  check_grad_sums(into);
  const CpuLoops& loops = cpu_loops();
  for_each_block(grad, first_element, elements, [&](const float* block, uint64_t count) {
    // The checksums first: what changes before the norm is read then shows in the update.
    if (into.sums != nullptr)
      sum_block(loops, into, block, static_cast<uint64_t>(block - grad), count);
    total->sum_squares += loops.grad_block(block, count, pre_scale, &total->nonfinite);
  });
}

GradStats grad_stats(const float* grad, uint64_t first_element, uint64_t elements, float pre_scale,
                     const GradSums& into) {
  GradStats total;
  add_grad_stats(&total, grad, first_element, elements, pre_scale, into);
  return total;
}

uint64_t grad_block_count(uint64_t first_element, uint64_t elements) {
  if (elements == 0) return 0;
  const uint64_t last = first_element + elements - 1;
  return last / kGradBlockElements - first_element / kGradBlockElements + 1;
}

uint64_t grad_block_sums(double* sums, const float* grad, uint64_t first_element, uint64_t elements,
                         float pre_scale) {
  const CpuLoops& loops = cpu_loops();
  uint64_t nonfinite = 0;
  for_each_block(grad, first_element, elements, [&](const float* block, uint64_t count) {
    *sums++ = loops.grad_block(block, count, pre_scale, &nonfinite);
  });
  return nonfinite;
}

void convert_to_f32(float* out, const void* in, DType dtype, uint64_t elements) {
  check_dtype(dtype);
  cpu_loops().to_f32(out, in, dtype, elements);
}

void convert_from_f32(void* out, const float* in, DType dtype, uint64_t elements) {
  check_dtype(dtype);
  cpu_loops().from_f32(out, in, dtype, elements);
}

}  // namespace optlease
