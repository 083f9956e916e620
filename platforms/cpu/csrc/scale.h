// Rows times a number.
#pragma once
#include "numbers.h"

namespace VARIANT::scale {

using namespace simd;

template <class T> inline void rows(const Scale &task, int64_t first, int64_t last) {
  int64_t whole = task.n / W * W, rest = task.n - whole;
  Float factor = set(task.factor);
  for (int64_t row = first; row < last; row++) {
    const T *x = (const T *)task.x + row * task.x_stride;
    T *out = (T *)task.out + row * task.out_stride;
    for (int64_t i = 0; i < whole; i += W) numbers::put(out + i, mul(numbers::take(x + i), factor));
    if (rest) numbers::put_some(out + whole, mul(numbers::take_some(x + whole, rest), factor), rest);
  }
}

}  // namespace VARIANT::scale
