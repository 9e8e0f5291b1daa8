// Compiled several times, each time for another instruction set and with another name for its
// table (OPTLEASE_LOOPS_TABLE, kernels/CMakeLists.txt). Everything else in here has internal
// linkage or is always inlined, so that no code for one instruction set leaks into another. Loops
// are plain C++ for the compiler to vectorise; each works on a block that stays in the first-level
// cache, so that memory is passed over once although a block is walked several times.
#include "kernels/cpu_loops.h"

#include "kernels/checksum.h"
#include "kernels/formats.h"
#include "shm/contract/remainder.h"

namespace optlease {
namespace {

constexpr uint64_t kBlockElements = 1024;

// Kept out of line: one place to look for the vector instructions, and nothing to gain.
#define OPTLEASE_LOOP __attribute__((noinline)) void

template <DType kDType>
using Stored = typename Format<kDType>::Storage;

using AliasedWord = uint32_t __attribute__((may_alias, aligned(1)));

// Gradients that are summed lie in memory that others can write: they are read once, and summed as
// they enter the update. Returns the checksum with the block's first word at `first`; 0 of those
// that are not FP32.
template <DType kGrad>
__attribute__((noinline)) uint64_t adam_block(float* __restrict main, float* __restrict exp_avg,
                                              float* __restrict exp_avg_sq,
                                              const Stored<kGrad>* __restrict grad,
                                              uint32_t elements, uint64_t first,
                                              const AdamFactors& given) {
  const AdamFactors factors = given;
  uint64_t plain = 0;     // sum of word
  uint64_t weighted = 0;  // sum of word * (2 * i + 1)
  for (uint32_t i = 0; i < elements; ++i) {
    const float value = Format<kGrad>::load(grad[i]);
    if constexpr (kGrad == DType::kF32) {
      plain += bits_of(value);
      weighted += static_cast<uint64_t>(bits_of(value)) * (2 * i + 1);
    }
    adam_element(main[i], exp_avg[i], exp_avg_sq[i], value, factors);
  }
  return weighted + 2 * first * plain;
}

template <DType kDType>
OPTLEASE_LOOP store_block(Stored<kDType>* __restrict out, const float* __restrict in,
                          uint64_t elements) {
  for (uint64_t i = 0; i < elements; ++i) out[i] = Format<kDType>::store(in[i]);
}

template <DType kDType>
OPTLEASE_LOOP load_block(float* __restrict out, const Stored<kDType>* __restrict in,
                         uint64_t elements) {
  for (uint64_t i = 0; i < elements; ++i) out[i] = Format<kDType>::load(in[i]);
}

template <DType kDType>
OPTLEASE_LOOP add_block(float* __restrict out, const Stored<kDType>* __restrict in,
                        uint64_t elements) {
  for (uint64_t i = 0; i < elements; ++i) out[i] = add_rn(out[i], Format<kDType>::load(in[i]));
}

using Half = uint16_t __attribute__((may_alias));

OPTLEASE_LOOP join_block(float* __restrict out, const Half* __restrict rounded,
                         const Half* __restrict remainder, uint64_t elements) {
  for (uint64_t i = 0; i < elements; ++i) {
    out[i] = float_of_bits(joined_bits(rounded[i], remainder[i]));
  }
}

OPTLEASE_LOOP split_block(Half* __restrict rounded, Half* __restrict remainder,
                          const float* __restrict in, uint64_t elements) {
  for (uint64_t i = 0; i < elements; ++i) {
    rounded[i] = rounded_half(bits_of(in[i]));
    remainder[i] = remainder_half(bits_of(in[i]));
  }
}

OPTLEASE_LOOP copy_block(Half* __restrict out, const Half* __restrict in, uint64_t elements) {
  for (uint64_t i = 0; i < elements; ++i) out[i] = in[i];
}

// One register: wider vector types would be kept in memory.
#if defined(__AVX512F__)
constexpr uint32_t kRegisterBytes = 64;
#elif defined(__AVX2__)
constexpr uint32_t kRegisterBytes = 32;
#else
constexpr uint32_t kRegisterBytes = 16;
#endif

// Sum of checksum_term over a block without a multiplication a word. A block is rows of one
// register, seen as lanes of two words. With S(r) a lane's sum over rows 0..r, the sum of all S is
// that of (rows - r) * word, hence the sum of r * word is rows * S(last) less that; lanes and the
// block's place then need a few multiplications a block. All of it is exact modulo 2^64, so the
// register's width does not show.
constexpr uint32_t kRowLanes = kRegisterBytes / 8;
constexpr uint32_t kRowWords = 2 * kRowLanes;
using Row = uint64_t __attribute__((vector_size(kRowLanes * 8)));
using StoredRow = uint64_t __attribute__((vector_size(kRowLanes * 8), aligned(1), may_alias));

__attribute__((noinline)) uint64_t checksum_block(const AliasedWord* words, uint32_t count,
                                                  uint64_t first) {
  static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "a lane's low half is its first word");
  const uint32_t rows = count / kRowWords;
  Row even = {}, odd = {}, even_running = {}, odd_running = {};
  for (uint32_t r = 0; r < rows; ++r) {
    const Row row = *reinterpret_cast<const StoredRow*>(words + r * kRowWords);
    even += row & 0xffffffffull;
    odd += row >> 32;
    even_running += even;
    odd_running += odd;
  }
  uint64_t plain = 0;     // sum of word
  uint64_t weighted = 0;  // sum of word * j, j counted from the block's start
  for (uint32_t l = 0; l < kRowLanes; ++l) {
    const uint64_t by_row = rows * (even[l] + odd[l]) - (even_running[l] + odd_running[l]);
    plain += even[l] + odd[l];
    weighted += kRowWords * by_row + 2 * l * (even[l] + odd[l]) + odd[l];
  }
  uint64_t sum = plain * (2 * first + 1) + 2 * weighted;
  for (uint32_t j = rows * kRowWords; j < count; ++j) sum += checksum_term(words[j], first + j);
  return sum;
}

OPTLEASE_HD_INLINE uint64_t least(uint64_t a, uint64_t b) { return a < b ? a : b; }

template <DType kDType>
OPTLEASE_HD_INLINE const Stored<kDType>* stored_at(const void* array, uint64_t index) {
  return static_cast<const Stored<kDType>*>(array) + index;
}

// A block's main weights: where they lie, or joined from their halves for as long as it is in hand.
class MainBlock {
 public:
  MainBlock(const AdamSpan& span, uint64_t at, uint64_t count)
      : span_(span), at_(at), count_(count) {
    if (span.main == nullptr) {
      join_block(joined_, span.main_rounded + at, span.main_remainder + at, count);
    }
  }
  float* data() { return span_.main == nullptr ? joined_ : span_.main + at_; }
  // Back to where they lie.
  void store() {
    if (span_.main != nullptr) return;
    split_block(span_.main_rounded + at_, span_.main_remainder + at_, joined_, count_);
  }

 private:
  const AdamSpan& span_;
  uint64_t at_;
  uint64_t count_;
  float joined_[kBlockElements];
};

uint64_t checksum_of_arrays(const AdamSpan& span, const float* main, uint64_t at, uint32_t count) {
  const float* arrays[3] = {main, span.exp_avg + at, span.exp_avg_sq + at};
  uint64_t sum = 0;
  for (int a = 0; a < 3; ++a) {
    sum += checksum_block(reinterpret_cast<const AliasedWord*>(arrays[a]), count,
                          span.first_word[a] + at);
  }
  return sum;
}

void from_f32(void* out, const float* in, DType dtype, uint64_t elements) {
  switch (dtype) {
    case DType::kF32:
      return store_block<DType::kF32>(static_cast<Stored<DType::kF32>*>(out), in, elements);
    case DType::kBF16:
      return store_block<DType::kBF16>(static_cast<Stored<DType::kBF16>*>(out), in, elements);
    case DType::kF16:
      return store_block<DType::kF16>(static_cast<Stored<DType::kF16>*>(out), in, elements);
  }
}

void to_f32(float* out, const void* in, DType dtype, uint64_t elements) {
  switch (dtype) {
    case DType::kF32:
      return load_block<DType::kF32>(out, stored_at<DType::kF32>(in, 0), elements);
    case DType::kBF16:
      return load_block<DType::kBF16>(out, stored_at<DType::kBF16>(in, 0), elements);
    case DType::kF16:
      return load_block<DType::kF16>(out, stored_at<DType::kF16>(in, 0), elements);
  }
}

template <DType kDType>
void store_params(const AdamSpan& span, uint64_t at, uint64_t count) {
  store_block<kDType>(static_cast<Stored<kDType>*>(span.param) + at, span.main + at, count);
}

void store_params(const AdamSpan& span, uint64_t at, uint64_t count) {
  if (span.param == nullptr) return;
  if (span.main == nullptr) {
    return copy_block(static_cast<Half*>(span.param) + at, span.main_rounded + at, count);
  }
  switch (span.param_dtype) {
    case DType::kF32:
      return store_params<DType::kF32>(span, at, count);
    case DType::kBF16:
      return store_params<DType::kBF16>(span, at, count);
    case DType::kF16:
      return store_params<DType::kF16>(span, at, count);
  }
}

template <DType kGrad>
void adam_span(const AdamSpan& span, const AdamFactors& factors, ChunkSums* out) {
  ChunkSums sums;
  for (uint64_t at = 0; at < span.elements; at += kBlockElements) {
    const uint64_t count = least(kBlockElements, span.elements - at);
    MainBlock main(span, at, count);
    sums.read += checksum_of_arrays(span, main.data(), at, static_cast<uint32_t>(count));
    sums.grad += adam_block<kGrad>(main.data(), span.exp_avg + at, span.exp_avg_sq + at,
                                   stored_at<kGrad>(span.grad, at), static_cast<uint32_t>(count),
                                   span.grad_first_word + at, factors);
    sums.written += checksum_of_arrays(span, main.data(), at, static_cast<uint32_t>(count));
    main.store();
    store_params(span, at, count);
  }
  *out = sums;
}

void adam(const AdamSpan& span, const AdamFactors& factors, ChunkSums* sums) {
  switch (span.grad_dtype) {
    case DType::kF32:
      return adam_span<DType::kF32>(span, factors, sums);
    case DType::kBF16:
      return adam_span<DType::kBF16>(span, factors, sums);
    case DType::kF16:
      return adam_span<DType::kF16>(span, factors, sums);
  }
}

uint64_t republish(const AdamSpan& span) {
  uint64_t sum = 0;
  for (uint64_t at = 0; at < span.elements; at += kBlockElements) {
    const uint64_t count = least(kBlockElements, span.elements - at);
    MainBlock main(span, at, count);
    sum += checksum_of_arrays(span, main.data(), at, static_cast<uint32_t>(count));
    store_params(span, at, count);
  }
  return sum;
}

uint64_t checksum(const void* words, uint64_t count, uint64_t first_word_index) {
  const AliasedWord* all = static_cast<const AliasedWord*>(words);
  uint64_t sum = 0;
  for (uint64_t at = 0; at < count; at += kBlockElements) {
    sum += checksum_block(all + at, static_cast<uint32_t>(least(kBlockElements, count - at)),
                          first_word_index + at);
  }
  return sum;
}

template <DType kDType>
void sum_shards_of(float* out, const void* const* inputs, uint32_t input_count, uint64_t elements) {
  for (uint64_t at = 0; at < elements; at += kBlockElements) {
    const uint64_t count = least(kBlockElements, elements - at);
    if (inputs[0] != out) load_block<kDType>(out + at, stored_at<kDType>(inputs[0], at), count);
    for (uint32_t k = 1; k < input_count; ++k) {
      add_block<kDType>(out + at, stored_at<kDType>(inputs[k], at), count);
    }
  }
}

void sum_shards(float* out, const void* const* inputs, uint32_t input_count, DType dtype,
                uint64_t elements) {
  switch (dtype) {
    case DType::kF32:
      return sum_shards_of<DType::kF32>(out, inputs, input_count, elements);
    case DType::kBF16:
      return sum_shards_of<DType::kBF16>(out, inputs, input_count, elements);
    case DType::kF16:
      return sum_shards_of<DType::kF16>(out, inputs, input_count, elements);
  }
}

// Lane l of 16 adds up elements l, l + 16, ...; then the lanes are added as a binary tree. Written
// with the lanes spelled out, so that the order of additions is the same at any register width.
constexpr uint64_t kLanes = 16;
constexpr uint64_t kPartLanes = kRegisterBytes / 8;
constexpr uint64_t kParts = kLanes / kPartLanes;
using Floats = float __attribute__((vector_size(kPartLanes * 4), aligned(4), may_alias));
using Doubles = double __attribute__((vector_size(kPartLanes * 8)));

double grad_block(const float* grad, uint64_t elements, float pre_scale, uint64_t* nonfinite) {
  const double scale = pre_scale;
  const uint64_t whole = elements / kLanes * kLanes;
  Doubles parts[kParts] = {};
  for (uint64_t i = 0; i < whole; i += kLanes) {
    for (uint64_t part = 0; part < kParts; ++part) {
      const Floats values = *reinterpret_cast<const Floats*>(grad + i + part * kPartLanes);
      const Doubles scaled = __builtin_convertvector(values, Doubles) * scale;
      parts[part] += scaled * scaled;
    }
  }
  double sums[kLanes];
  for (uint64_t l = 0; l < kLanes; ++l) sums[l] = parts[l / kPartLanes][l % kPartLanes];
  for (uint64_t i = whole; i < elements; ++i) {
    const double scaled = static_cast<double>(grad[i]) * scale;
    sums[i - whole] += scaled * scaled;
  }
  for (uint64_t half = kLanes / 2; half != 0; half /= 2) {
    for (uint64_t l = 0; l < half; ++l) sums[l] += sums[l + half];
  }
  uint32_t count = 0;
  for (uint64_t i = 0; i < elements; ++i) {
    count += (bits_of(grad[i]) & 0x7f800000u) == 0x7f800000u ? 1u : 0u;
  }
  *nonfinite += count;
  return sums[0];
}

constexpr CpuLoops kLoops = {adam, republish, checksum, sum_shards, grad_block, to_f32, from_f32};

}  // namespace

const CpuLoops& OPTLEASE_LOOPS_TABLE() { return kLoops; }

}  // namespace optlease
