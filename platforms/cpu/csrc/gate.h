// Gates: of an MLP whose first product is computed apart from it, and by sigmoids.
#pragma once
#include "numbers.h"

namespace VARIANT::gate {

using namespace simd;
using numbers::put, numbers::put_some, numbers::take, numbers::take_some;

template <class T> inline void rows(const Gate &task, int64_t first, int64_t last) {
  Float slope = set(task.slope), inverse = set(1.0f / task.slope), offset = set(task.offset);
  Float most = set(task.limit), least = set(-task.limit);
  auto gated = [&](Float left, Float right) {
    Float opened = mul(activated(mul(slope, min(most, left)), task.activation), inverse);
    return mul(opened, add(max(least, min(most, right)), offset));
  };
  int64_t whole = task.n / W * W, rest = task.n - whole;
  for (int64_t row = first; row < last; row++) {
    const T *left = (const T *)task.x + row * task.x_stride, *right = left + task.n;
    T *out = (T *)task.out + row * task.out_stride;
    for (int64_t i = 0; i < whole; i += W) put(out + i, gated(take(left + i), take(right + i)));
    if (rest) put_some(out + whole, gated(take_some(left + whole, rest), take_some(right + whole, rest)), rest);
  }
}

inline Float sigmoid_of(Float x) { return div(set(1.0f), add(set(1.0f), exp(sub(zero(), x)))); }

template <class T> inline void sigmoid(const SigmoidGate &task, int64_t first, int64_t last) {
  int64_t each = task.n / task.gates, step = each == 1 ? task.n : each, whole = step / W * W, rest = step - whole;
  for (int64_t row = first; row < last; row++) {
    const T *x = (const T *)task.x + row * task.x_stride, *gates = (const T *)task.gate + row * task.gate_stride;
    T *out = (T *)task.out + row * task.out_stride;
    for (int64_t from = 0; from < task.n; from += step) {
      Float one = sigmoid_of(take_some(gates + from / each, 1));
      alignas(64) float first_of[W];
      store(first_of, one);
      auto gated = [&](int64_t i, int64_t count) {
        Float of_x = count < W ? take_some(x + from + i, count) : take(x + from + i);
        if (each > 1) return mul(of_x, set(first_of[0]));
        return mul(of_x, sigmoid_of(count < W ? take_some(gates + i, count) : take(gates + i)));
      };
      for (int64_t i = 0; i < whole; i += W) put(out + from + i, gated(i, W));
      if (rest) put_some(out + from + whole, gated(whole, rest), rest);
    }
  }
}

}  // namespace VARIANT::gate
