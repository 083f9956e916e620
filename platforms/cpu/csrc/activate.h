// An activation by itself.
#pragma once
#include "numbers.h"

namespace VARIANT::activate {

using namespace simd;

template <class T> inline void rows(const Activate &task, int64_t first, int64_t last) {
  int64_t whole = task.n / W * W, rest = task.n - whole;
  for (int64_t row = first; row < last; row++) {
    const T *x = (const T *)task.x + row * task.x_stride;
    T *out = (T *)task.out + row * task.out_stride;
    for (int64_t i = 0; i < whole; i += W) numbers::put(out + i, activated(numbers::take(x + i), task.activation));
    if (rest) numbers::put_some(out + whole, activated(numbers::take_some(x + whole, rest), task.activation), rest);
  }
}

}  // namespace VARIANT::activate
