// RMS norm of x or of its sum with a residual. Rows are read twice (three times to quantize them), all but the
// first time from the L1 cache.
#pragma once
#include <cmath>

#include "kernels.h"
#include "quantise.h"

namespace VARIANT::norm {

using namespace simd;

// Writes the sum, if there is a residual, and returns the mean of squares of the row to normalize.
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

// The elements of a normalized row.
struct Normed {
  const bf16 *from, *weight;
  float factor, offset;

  Float load(int64_t i) const {
    return mul(mul(load_bf16(from + i), set(factor)), add(load_bf16(weight + i), set(offset)));
  }
  float one(int64_t i) const {
    return single::widened(from[i]) * factor * (single::widened(weight[i]) + offset);
  }
};

inline void add_norm(const AddNorm &task, int64_t first, int64_t last) {
  for (int64_t row = first; row < last; row++) {
    const bf16 *x = task.x + row * task.x_stride;
    const bf16 *residual = task.residual ? task.residual + row * task.residual_stride : nullptr;
    bf16 *sum = residual ? task.sum + row * task.n : nullptr;
    float squares = gather(task, x, residual, sum);
    float factor = 1.0f / std::sqrt(squares + task.eps);
    Normed normed{residual ? sum : x, task.weight, factor, task.offset};
    if (task.rounded.elements) {
      quantise::put(normed, task.n, task.rounded, row);
      continue;
    }
    bf16 *out = task.out + row * task.n;
    int64_t i = 0;
    for (; i + W <= task.n; i += W) store_bf16(out + i, normed.load(i));
    for (; i < task.n; i++) out[i] = single::rounded(normed.one(i));
  }
}

}  // namespace VARIANT::norm
