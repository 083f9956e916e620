// The gate of an MLP whose first product is computed apart from it.
#pragma once
#include "kernels.h"

namespace VARIANT::gate {

using namespace simd;

inline void rows(const Gate &task, int64_t first, int64_t last) {
  for (int64_t row = first; row < last; row++) {
    const bf16 *left = task.x + row * task.x_stride, *right = left + task.n;
    bf16 *out = task.out + row * task.out_stride;
    int64_t i = 0;
    for (; i + W <= task.n; i += W)
      store_bf16(out + i, mul(activated(load_bf16(left + i), task.activation), load_bf16(right + i)));
    if (i == task.n) continue;
    float ends[2][W] = {};
    for (int64_t j = i; j < task.n; j++)
      ends[0][j - i] = single::widened(left[j]), ends[1][j - i] = single::widened(right[j]);
    store(ends[0], mul(activated(load(ends[0]), task.activation), load(ends[1])));
    for (int64_t j = i; j < task.n; j++) out[j] = single::rounded(ends[0][j - i]);
  }
}

}  // namespace VARIANT::gate
