// Layer norm of x or of its sum with a residual, or the sum alone. Rows are read three times, all but the first time from the L1
// cache: for the mean, for the variance around it, and for the result.
#pragma once
#include <cmath>

#include "numbers.h"

namespace VARIANT::layer_norm {

using namespace simd;

// Writes the sum, rounded, if there is a residual, and returns the mean of the row to normalize.
template <class T> inline float gather(const T *x, const T *residual, T *sum, int64_t n) {
  Float total = zero();
  int64_t whole = n / W * W, rest = n - whole;
  for (int64_t i = 0; i < whole; i += W) {
    if (residual) numbers::put(sum + i, add(numbers::take(x + i), numbers::take(residual + i)));
    total = add(total, numbers::take((residual ? sum : x) + i));
  }
  if (rest) {
    if (residual) {
      Float both = add(numbers::take_some(x + whole, rest), numbers::take_some(residual + whole, rest));
      numbers::put_some(sum + whole, both, rest);
    }
    total = add(total, numbers::take_some((residual ? sum : x) + whole, rest));
  }
  return simd::sum(total) / (float)n;
}

template <class T> inline float variance(const T *x, float mean, int64_t n) {
  Float squares = zero();
  int64_t whole = n / W * W, rest = n - whole;
  for (int64_t i = 0; i < whole; i += W) {
    Float centred = sub(numbers::take(x + i), set(mean));
    squares = fma(centred, centred, squares);
  }
  float ends[W] = {};
  if (rest) store(ends, sub(numbers::take_some(x + whole, rest), set(mean)));
  float total = simd::sum(squares);
  for (int64_t i = 0; i < rest; i++) total += ends[i] * ends[i];
  return total / (float)n;
}

template <class T> inline void rows(const LayerNorm &task, int64_t first, int64_t last) {
  const T *weight = (const T *)task.weight, *bias = (const T *)task.bias;
  int64_t n = task.n, whole = n / W * W, rest = n - whole;
  for (int64_t row = first; row < last; row++) {
    const T *x = (const T *)task.x + row * task.x_stride;
    const T *residual = task.residual ? (const T *)task.residual + row * task.residual_stride : nullptr;
    T *sum = residual ? (T *)task.sum + row * n : nullptr, *out = (T *)task.out + row * n;
    float mean = gather(x, residual, sum, n);
    if (!task.out) continue;
    const T *from = residual ? sum : x;
    float factor = 1.0f / std::sqrt(variance(from, mean, n) + task.eps);
    auto normed = [&](Float value, Float weight, Float bias) {
      return fma(mul(sub(value, set(mean)), set(factor)), weight, bias);
    };
    for (int64_t i = 0; i < whole; i += W)
      numbers::put(out + i, normed(numbers::take(from + i), numbers::take(weight + i), numbers::take(bias + i)));
    if (!rest) continue;
    auto end = [&](const T *p) { return numbers::take_some(p + whole, rest); };
    numbers::put_some(out + whole, normed(end(from), end(weight), end(bias)), rest);
  }
}

}  // namespace VARIANT::layer_norm
