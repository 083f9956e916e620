// The norm of what a state mixer returns, with its gate, or the gate alone.
#pragma once
#include <cmath>

#include "numbers.h"

namespace VARIANT::gated_norm {

using namespace simd;

// A group of a token.
template <class Number> struct Group {
  const GatedNorm &task;
  int64_t size, first;  // first: of its elements in the token
  const float *x, *weight;
  const Number *gate;
  Number *out;

  Group(const GatedNorm &task, int64_t item) : task(task), size(task.size) {
    int64_t token = item / task.groups, group = item % task.groups;
    first = group * size;
    x = task.x + token * task.x_stride + first;
    weight = task.weight ? task.weight + group * task.weight_stride : nullptr;
    gate = (const Number *)task.gate + token * task.gate_stride + first;
    out = (Number *)task.out + item * size;
  }

  // each(i, count): W elements from i on, of which `count` exist.
  template <class Each> void vectors(Each &&each) const {
    for (int64_t i = 0; i < size; i += W) each(i, size - i < W ? size - i : W);
  }
  template <class T> static Float take(const T *p, int64_t count) {
    return count < W ? numbers::take_some(p, count) : numbers::take(p);
  }

  Float gated(Float value, int64_t i, int64_t count) const {
    Float own = take(gate + i, count);
    if (task.multipliers) own = mul(own, take(task.multipliers + first + i, count));
    return mul(value, silu(own));
  }
  // What is normed.
  Float element(int64_t i, int64_t count) const {
    Float value = take(x + i, count);
    return task.gate_first ? gated(value, i, count) : value;
  }

  void run() const {
    Float squares = zero();
    if (weight) vectors([&](int64_t i, int64_t count) { squares = fma(element(i, count), element(i, count), squares); });
    Float factor = set(1.0f / std::sqrt(sum(squares) / (float)size + task.eps));
    vectors([&](int64_t i, int64_t count) {
      Float value = element(i, count);
      if (weight) value = mul(mul(value, factor), take(weight + i, count));
      if (!task.gate_first) value = gated(value, i, count);
      count < W ? numbers::put_some(out + i, value, count) : numbers::put(out + i, value);
    });
  }
};

template <class Number> void groups(const GatedNorm &task, int64_t first, int64_t last) {
  for (int64_t item = first; item < last; item++) Group<Number>(task, item).run();
}

}  // namespace VARIANT::gated_norm
