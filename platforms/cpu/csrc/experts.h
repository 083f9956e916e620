// What a mixture of experts does beside its products: rows are gathered by expert before them, and added up by token behind them.
#pragma once
#include "numbers.h"

namespace VARIANT::experts {

using namespace simd;
using numbers::put, numbers::put_some, numbers::take, numbers::take_some;

inline void widen(const Widening &task, int64_t first, int64_t last) {
  for (int64_t row = first; row < last; row++)
    for (int64_t i = 0; i < task.n; i++) task.out[row * task.n + i] = single::widened(task.x[row * task.x_stride + i]);
}

template <class T> inline void gather(const Gathering &task, int64_t first, int64_t last) {
  int64_t whole = task.n / W * W, rest = task.n - whole;
  for (int64_t row = first; row < last; row++) {
    const T *x = (const T *)task.x + task.choices[row] / task.top_k * task.x_stride;
    T *to = (T *)task.to + row * task.n;
    if (!task.weights) {
      std::memcpy(to, x, task.n * sizeof(T));
      continue;
    }
    Float weight = set(task.weights[task.choices[row]]);
    for (int64_t i = 0; i < whole; i += W) put(to + i, mul(take(x + i), weight));
    if (rest) put_some(to + whole, mul(take_some(x + whole, rest), weight), rest);
  }
}

template <class T> inline void join(const Joining &task, int64_t first, int64_t last) {
  bool begins = !task.start, ends = task.end == task.all;
  int64_t whole = task.n / W * W, rest = task.n - whole;
  for (int64_t token = first; token < last; token++) {
    const int32_t *place = task.places + token * task.top_k, *until = place + task.top_k;
    while (place < until && *place >= 0 && *place < task.start) place++;
    const int32_t *after = place;
    while (after < until && *after >= 0 && *after < task.end) after++;
    float *sums = task.sums ? task.sums + token * task.n : nullptr;
    T *out = (T *)task.out + token * task.out_stride;
    auto add_up = [&](int64_t i, int64_t count) {
      Float sum = begins ? zero() : count < W ? take_some(sums + i, count) : take(sums + i);
      for (const int32_t *p = place; p < after; p++) {
        const T *from = (const T *)task.rows + (*p - task.start) * task.n + i;
        Float weight = set(task.weights ? task.weights[task.choices[*p]] : 1.0f);
        sum = fma(weight, count < W ? take_some(from, count) : take(from), sum);
      }
      return sum;
    };
    for (int64_t i = 0; i < whole; i += W) ends ? put(out + i, add_up(i, W)) : put(sums + i, add_up(i, W));
    if (rest) ends ? put_some(out + whole, add_up(whole, rest), rest) : put_some(sums + whole, add_up(whole, rest), rest);
  }
}

}  // namespace VARIANT::experts
