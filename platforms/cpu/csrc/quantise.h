// Rows to whole numbers of 8 bits: symmetric, one scale a row.
#pragma once
#include <cmath>
#include <cstring>

#include "kernels.h"

namespace VARIANT::quantise {

using namespace simd;

inline float largest_of(const bf16 *x, int64_t k) {
  Float most = zero();
  int64_t i = 0;
  for (; i + W <= k; i += W) most = max(most, magnitude(load_bf16(x + i)));
  float found = largest(most);
  for (; i < k; i++) found = std::fmax(found, std::fabs(single::widened(x[i])));
  return found;
}

// 0, or none where an element is none or infinite.
inline float poison_of(const bf16 *x, int64_t k) {
  Float sum = zero();
  int64_t i = 0;
  for (; i + W <= k; i += W) sum = fma(load_bf16(x + i), zero(), sum);
  float each[W], found = 0.0f;
  store(each, sum);
  for (float one : each) found += one;
  for (; i < k; i++) found += single::widened(x[i]) * 0.0f;
  return found;
}

inline void quantise(const Quantise &task, int64_t first, int64_t last) {
  for (int64_t row = first; row < last; row++) {
    const bf16 *x = task.x + row * task.x_stride;
    int8_t *to = task.to + row * task.stride;
    float most = largest_of(x, task.k), factor = most > 0.0f ? 127.0f / most : 0.0f;
    float poison = poison_of(x, task.k);
    int64_t i = 0, groups = (task.k + task.group - 1) / task.group;
    task.scale[row] = most / 127.0f + poison;
    if (poison != 0.0f) {  // whatever is multiplied with it is none
      std::memset(to, 0, task.stride);
      std::memset(task.sums + row * groups, 0, groups * sizeof(int32_t));
      continue;
    }
    for (; i + W <= task.k; i += W) store_int8(to + i, mul(load_bf16(x + i), set(factor)));
    for (; i < task.k; i++) to[i] = (int8_t)std::nearbyintf(single::widened(x[i]) * factor);
    for (; i < task.stride; i++) to[i] = 0;
    for (int64_t g = 0; g < groups; g++) {
      int32_t sum = 0;
      int64_t end = (g + 1) * task.group < task.k ? (g + 1) * task.group : task.k;
      for (int64_t at = g * task.group; at < end; at++) sum += to[at];
      task.sums[row * groups + g] = sum;
    }
  }
}

}  // namespace VARIANT::quantise
