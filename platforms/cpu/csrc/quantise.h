// Quantizes rows to int8: symmetric, one scale per row.
#pragma once
#include <cmath>
#include <cstring>

#include "kernels.h"

namespace VARIANT::quantise {

using namespace simd;

struct Plain {
  const bf16 *x;

  Float load(int64_t i) const { return load_bf16(x + i); }
  float one(int64_t i) const { return single::widened(x[i]); }
};

// The largest magnitude in a row; NaN if an element is NaN or infinite.
template <class Row> float largest_of(const Row &row, int64_t k) {
  Float most = zero(), poison = zero();
  int64_t i = 0;
  for (; i + W <= k; i += W) {
    Float x = row.load(i);
    most = max(most, magnitude(x));
    poison = fma(x, zero(), poison);
  }
  float found = largest(most), none = sum(poison);
  for (; i < k; i++) {
    float x = row.one(i);
    found = std::fmax(found, std::fabs(x));
    none += x * 0.0f;
  }
  return found + none;
}

// Quantizes a row of k elements, which `from` gives W at a time or singly, to the row-th of rows.
template <class Row> void put(const Row &from, int64_t k, const Int8Rows &rows, int64_t row) {
  int8_t *to = rows.elements + row * rows.stride;
  int64_t groups = (k + rows.group - 1) / rows.group, i = 0;
  int32_t *sums = rows.sums + row * groups;
  float most = largest_of(from, k), factor = most > 0.0f ? 127.0f / most : 0.0f;
  rows.scale[row] = most / 127.0f;
  if (most != most) {  // any product with this row is NaN
    std::memset(to, 0, rows.stride);
    std::memset(sums, 0, groups * sizeof(int32_t));
    return;
  }
  for (; i + W <= k; i += W) store_int8(to + i, mul(from.load(i), set(factor)));
  for (; i < k; i++) to[i] = (int8_t)std::nearbyintf(from.one(i) * factor);
  for (; i < rows.stride; i++) to[i] = 0;
  for (int64_t g = 0; g < groups; g++) {
    int32_t sum = 0;
    int64_t end = (g + 1) * rows.group < k ? (g + 1) * rows.group : k;
    for (int64_t at = g * rows.group; at < end; at++) sum += to[at];
    sums[g] = sum;
  }
}

inline void quantise(const Quantise &task, int64_t first, int64_t last) {
  for (int64_t row = first; row < last; row++) put(Plain{task.x + row * task.x_stride}, task.k, task.to, row);
}

}  // namespace VARIANT::quantise
