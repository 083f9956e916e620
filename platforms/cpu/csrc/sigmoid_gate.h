// Gates of a token, or of its heads.
#pragma once
#include "numbers.h"

namespace VARIANT::sigmoid_gate {

using namespace simd;

template <class Number> void rows(const SigmoidGate &task, int64_t first, int64_t last) {
  auto take = [](const Number *p, int64_t count) { return count < W ? numbers::take_some(p, count) : numbers::take(p); };
  int64_t each = task.n / task.gates;
  for (int64_t row = first; row < last; row++) {
    const Number *x = (const Number *)task.x + row * task.x_stride, *gate = (const Number *)task.gate + row * task.gate_stride;
    Number *out = (Number *)task.out + row * task.out_stride;
    auto some = [&](int64_t i, int64_t end, Float gates) {
      Float value = mul(take(x + i, end - i), gates);
      end - i < W ? numbers::put_some(out + i, value, end - i) : numbers::put(out + i, value);
    };
    if (each == 1)
      for (int64_t i = 0; i < task.n; i += W) some(i, task.n, sigmoid(take(gate + i, task.n - i)));
    else
      for (int64_t g = 0; g < task.gates; g++) {
        alignas(64) float own[W];
        store(own, sigmoid(numbers::take_some(gate + g, 1)));
        for (int64_t i = g * each; i < (g + 1) * each; i += W) some(i, (g + 1) * each, set(own[0]));
      }
  }
}

}  // namespace VARIANT::sigmoid_gate
