// Rows of a table by their numbers.
#pragma once
#include <cstring>

#include "kernels.h"

namespace VARIANT::lookup {

using namespace simd;

inline void rows(const Lookup &task, int64_t first, int64_t last) {
  Float scale = set(task.scale);
  for (int64_t t = first; t < last; t++) {
    const bf16 *from = task.table + task.ids[t] * task.stride;
    bf16 *to = task.out + t * task.n;
    if (task.scale == 1.0f) {
      std::memcpy(to, from, task.n * sizeof(bf16));
      continue;
    }
    int64_t i = 0;
    for (; i + W <= task.n; i += W) store_bf16(to + i, mul(load_bf16(from + i), scale));
    for (; i < task.n; i++) to[i] = single::rounded(single::widened(from[i]) * task.scale);
  }
}

}  // namespace VARIANT::lookup
