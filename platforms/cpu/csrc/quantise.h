// Quantizes rows to int8: symmetric, one scale per group.
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

// The largest magnitude of elements i to before `end`; NaN if one is NaN or infinite.
template <class Row> float largest_of(const Row &row, int64_t i, int64_t end) {
  Float most = zero(), poison = zero();
  for (; i + W <= end; i += W) {
    Float x = row.load(i);
    most = max(most, magnitude(x));
    poison = fma(x, zero(), poison);
  }
  float found = largest(most), none = sum(poison);
  for (; i < end; i++) {
    float x = row.one(i);
    found = std::fmax(found, std::fabs(x));
    none += x * 0.0f;
  }
  return found + none;
}

// Quantizes elements i to before `end`, which share a scale, and returns it.
template <class Row> float put_group(const Row &from, int64_t i, int64_t end, int8_t *to) {
  float most = largest_of(from, i, end), factor = most > 0.0f ? 127.0f / most : 0.0f;
  if (most != most) {  // any product with this row is NaN
    std::memset(to + i, 0, end - i);
    return most;
  }
  for (; i + W <= end; i += W) store_int8(to + i, mul(from.load(i), set(factor)));
  for (; i < end; i++) to[i] = (int8_t)std::nearbyintf(from.one(i) * factor);
  return most / 127.0f;
}

inline int32_t sum_of(const int8_t *x, int64_t count) {
  int32_t sum = 0;
  for (int64_t i = 0; i < count; i++) sum += x[i];
  return sum;
}

// Quantizes a row of k elements, which `from` gives W at a time or singly, to the row-th of rows.
template <class Row> void put(const Row &from, int64_t k, const Int8Rows &rows, int64_t row) {
  int8_t *to = rows.elements + row * rows.stride;
  int64_t groups = (k + rows.group - 1) / rows.group, parts = (k + rows.part - 1) / rows.part;
  for (int64_t g = 0; g < groups; g++) {
    int64_t end = (g + 1) * rows.group < k ? (g + 1) * rows.group : k;
    rows.scale[row * groups + g] = put_group(from, g * rows.group, end, to);
  }
  for (int64_t i = k; i < rows.stride; i++) to[i] = 0;
  int32_t *sums = rows.sums + row * parts;
  int64_t whole = k / rows.part;
  for (int64_t p = 0; p < whole; p++) sums[p] = sum_of(to + p * rows.part, rows.part);
  if (whole < parts) sums[whole] = sum_of(to + whole * rows.part, k - whole * rows.part);
}

inline void quantise(const Quantise &task, int64_t first, int64_t last) {
  for (int64_t row = first; row < last; row++) put(Plain{task.x + row * task.x_stride}, task.k, task.to, row);
}

}  // namespace VARIANT::quantise
