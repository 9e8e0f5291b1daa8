#include "actors/trainer/matmul.h"

#include <algorithm>

namespace optlease {

namespace {

// Eight floats that are added and multiplied side by side, at any address. Written out because the
// vectoriser left alone turns the tile below on its side; without AVX2 it becomes two halves.
using Lanes [[gnu::vector_size(32), gnu::aligned(4), gnu::may_alias]] = float;
constexpr uint64_t kLanes = 8;
constexpr uint64_t kTileRows = 4;
constexpr uint64_t kTileColumns = 2 * kLanes;

// One tile of c. Its sums are independent of each other: running them side by side in registers
// changes no bit of any.
template <uint64_t kRows>
[[gnu::always_inline]] inline void full_width_tile(const float* a, const float* b, float* c,
                                                   uint64_t k, uint64_t n) {
  Lanes left[kRows] = {};
  Lanes right[kRows] = {};
  for (uint64_t p = 0; p < k; ++p) {
    const Lanes b_left = *reinterpret_cast<const Lanes*>(b + p * n);
    const Lanes b_right = *reinterpret_cast<const Lanes*>(b + p * n + kLanes);
    for (uint64_t i = 0; i < kRows; ++i) {
      left[i] += a[i * k + p] * b_left;
      right[i] += a[i * k + p] * b_right;
    }
  }
  for (uint64_t i = 0; i < kRows; ++i) {
    *reinterpret_cast<Lanes*>(c + i * n) += left[i];
    *reinterpret_cast<Lanes*>(c + i * n + kLanes) += right[i];
  }
}

// The right edge: fewer columns than a tile has.
[[gnu::always_inline]] inline void narrow_row(const float* a, const float* b, float* c, uint64_t k,
                                              uint64_t n, uint64_t columns) {
  float sums[kTileColumns] = {};
  for (uint64_t p = 0; p < k; ++p)
    for (uint64_t j = 0; j < columns; ++j) sums[j] += a[p] * b[p * n + j];
  for (uint64_t j = 0; j < columns; ++j) c[j] += sums[j];
}

// Columns outermost: a panel of b stays in the first-level cache while all of a passes by.
[[gnu::always_inline]] inline void multiply_add_tiles(const float* a, const float* b, float* c,
                                                      uint64_t m, uint64_t k, uint64_t n) {
  for (uint64_t j = 0; j < n; j += kTileColumns) {
    const uint64_t columns = std::min(kTileColumns, n - j);
    uint64_t i = 0;
    if (columns == kTileColumns) {
      for (; i + kTileRows <= m; i += kTileRows)
        full_width_tile<kTileRows>(a + i * k, b + j, c + i * n + j, k, n);
      for (; i < m; ++i) full_width_tile<1>(a + i * k, b + j, c + i * n + j, k, n);
    }
    for (; i < m; ++i) narrow_row(a + i * k, b + j, c + i * n + j, k, n, columns);
  }
}

#if defined(__x86_64__)
// Wider registers, and no fused multiply-add: the same bits as the baseline.
[[gnu::target("avx2")]] void multiply_add_avx2(const float* a, const float* b, float* c, uint64_t m,
                                               uint64_t k, uint64_t n) {
  multiply_add_tiles(a, b, c, m, k, n);
}
#endif

}  // namespace

void multiply_add(const float* a, const float* b, float* c, uint64_t m, uint64_t k, uint64_t n) {
#if defined(__x86_64__)
  static const bool has_avx2 = __builtin_cpu_supports("avx2") != 0;
  if (has_avx2) return multiply_add_avx2(a, b, c, m, k, n);
#endif
  multiply_add_tiles(a, b, c, m, k, n);
}

void transpose(const float* in, float* out, uint64_t rows, uint64_t columns) {
  constexpr uint64_t kBlock = 32;  // both sides of a block fit the first-level cache
  for (uint64_t r = 0; r < rows; r += kBlock)
    for (uint64_t c = 0; c < columns; c += kBlock)
      for (uint64_t i = r; i < std::min(r + kBlock, rows); ++i)
        for (uint64_t j = c; j < std::min(c + kBlock, columns); ++j)
          out[j * rows + i] = in[i * columns + j];
}

}  // namespace optlease
