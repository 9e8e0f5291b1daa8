// Matrix products for the example trainer: row-major, single-threaded, with one fixed order of
// summation, so that the same inputs give the same bits on every run and at every block size. Used
// by byte_model.cc; it is no general linear algebra library.
#pragma once

#include <cstdint>

namespace optlease {

// c[m, n] += a[m, k] * b[k, n]. Each product sum runs over k ascending from zero, then is added to
// c. No array may overlap another.
void multiply_add(const float* a, const float* b, float* c, uint64_t m, uint64_t k, uint64_t n);

// out[columns, rows] = in[rows, columns] transposed.
void transpose(const float* in, float* out, uint64_t rows, uint64_t columns);

}  // namespace optlease
