// RMS norm, of a sum where there is a residual; or the sum alone. Rows are read twice, from the nearest cache the second time.
#pragma once
#include <cmath>

#include "kernels.h"

namespace VARIANT::norm {

using namespace simd;

// The row that is normed, written where it is kept; returns its mean of squares.
inline float gather(const AddNorm &task, const bf16 *x, const bf16 *residual, bf16 *sum) {
  Float squares = zero(), multiplier = set(task.multiplier);
  int64_t i = 0;
  float rest = 0.0f;
  for (; i + W <= task.n; i += W) {
    Float value = load_bf16(x + i);
    if (residual) {
      store_bf16(sum + i, fma(value, multiplier, load_bf16(residual + i)));
      value = load_bf16(sum + i);
    }
    squares = fma(value, value, squares);
  }
  for (; i < task.n; i++) {
    float value = single::widened(x[i]);
    if (residual) {
      sum[i] = single::rounded(value * task.multiplier + single::widened(residual[i]));
      value = single::widened(sum[i]);
    }
    rest += value * value;
  }
  return (simd::sum(squares) + rest) / (float)task.n;
}

inline void add_norm(const AddNorm &task, int64_t first, int64_t last) {
  for (int64_t row = first; row < last; row++) {
    const bf16 *x = task.x + row * task.x_stride, *source = x;
    const bf16 *residual = task.residual ? task.residual + row * task.residual_stride : nullptr;
    bf16 *sum = residual ? task.sum + row * task.n : nullptr;
    float squares = gather(task, x, residual, sum);
    if (!task.out) continue;
    float factor = 1.0f / std::sqrt(squares + task.eps);
    if (residual) source = sum;
    bf16 *out = task.out + row * task.n;
    Float factors = set(factor), offset = set(task.offset);
    int64_t i = 0;
    for (; i + W <= task.n; i += W)
      store_bf16(out + i, mul(mul(load_bf16(source + i), factors), add(load_bf16(task.weight + i), offset)));
    for (; i < task.n; i++)
      out[i] = single::rounded(single::widened(source[i]) * factor * (single::widened(task.weight[i]) + task.offset));
  }
}

}  // namespace VARIANT::norm
