#include "kernels/adam_cpu.h"

#include "kernels/checksum.h"
#include "kernels/cpu_loops.h"
#include "shm/contract/geometry.h"
#include "shm/contract/status.h"

namespace optlease {
namespace {

const void* advance(const void* array, DType dtype, uint64_t elements) {
  return static_cast<const char*>(array) + elements * bytes_of(dtype);
}

AdamSpan span_of(const AdamChunk& chunk, uint64_t begin, uint64_t end) {
  OPTLEASE_CHECK(begin <= end && end <= chunk.elements, "range [%llu, %llu) of %llu elements",
                 static_cast<unsigned long long>(begin), static_cast<unsigned long long>(end),
                 static_cast<unsigned long long>(chunk.elements));
  const uint64_t whole = chunk.chunk_elements == 0 ? chunk.elements : chunk.chunk_elements;
  const uint64_t stride_words = array_stride_bytes(whole) / 4;
  OPTLEASE_CHECK(chunk.first + chunk.elements <= whole, "elements %llu to %llu of a chunk of %llu",
                 static_cast<unsigned long long>(chunk.first),
                 static_cast<unsigned long long>(chunk.first + chunk.elements),
                 static_cast<unsigned long long>(whole));
  AdamSpan span{};
  if (chunk.is_in_halves()) {
    OPTLEASE_CHECK(chunk.main == nullptr && chunk.main_remainder != nullptr, "main weights twice");
    OPTLEASE_CHECK(chunk.param == nullptr || chunk.param_dtype == DType::kBF16,
                   "parameters %s of main weights in halves", name_of(chunk.param_dtype));
    span.main_rounded = chunk.main_rounded + begin;
    span.main_remainder = chunk.main_remainder + begin;
  } else {
    span.main = chunk.main + begin;
  }
  span.exp_avg = chunk.exp_avg + begin;
  span.exp_avg_sq = chunk.exp_avg_sq + begin;
  span.grad_dtype = chunk.grad_dtype;
  span.param_dtype = chunk.param_dtype;
  span.elements = end - begin;
  for (uint32_t a = 0; a < kAdamArrayCount; ++a) {
    span.first_word[a] = a * stride_words + chunk.first + begin;
  }
  if (chunk.param != nullptr) {
    OPTLEASE_CHECK(bytes_of(chunk.param_dtype) != 0, "parameter dtype %u",
                   static_cast<unsigned>(chunk.param_dtype));
    span.param = const_cast<void*>(advance(chunk.param, chunk.param_dtype, begin));
  }
  return span;
}

}  // namespace

ChunkSums adam_update_range(const AdamChunk& chunk, const AdamFactors& factors, uint64_t begin,
                            uint64_t end) {
  OPTLEASE_CHECK(chunk.grad != nullptr || chunk.elements == 0, "no gradient for %llu elements",
                 static_cast<unsigned long long>(chunk.elements));
  OPTLEASE_CHECK(bytes_of(chunk.grad_dtype) != 0, "gradient dtype %u",
                 static_cast<unsigned>(chunk.grad_dtype));
  AdamSpan span = span_of(chunk, begin, end);
  span.grad = advance(chunk.grad, chunk.grad_dtype, begin);
  span.grad_first_word = chunk.grad_first_word + begin;
  ChunkSums sums;
  cpu_loops().adam(span, factors, &sums);
  return sums;
}

ChunkSums adam_update(const AdamChunk& chunk, const AdamFactors& factors) {
  return adam_update_range(chunk, factors, 0, chunk.elements);
}

uint64_t republish_range(const AdamChunk& chunk, uint64_t begin, uint64_t end) {
  OPTLEASE_CHECK(chunk.param != nullptr, "no parameter buffer for %llu elements",
                 static_cast<unsigned long long>(chunk.elements));
  return cpu_loops().republish(span_of(chunk, begin, end));
}

uint64_t republish(const AdamChunk& chunk) { return republish_range(chunk, 0, chunk.elements); }

uint64_t checksum_words(const void* words, uint64_t count, uint64_t first_word_index) {
  return cpu_loops().checksum(words, count, first_word_index);
}

uint64_t checksum_chunk(const void* slot, uint64_t elements) {
  const uint64_t stride_bytes = array_stride_bytes(elements);
  uint64_t sum = 0;
  for (uint32_t a = 0; a < kAdamArrayCount; ++a) {
    const char* array = static_cast<const char*>(slot) + a * stride_bytes;
    sum += checksum_words(array, elements, a * stride_bytes / 4);
  }
  return sum;
}

}  // namespace optlease
