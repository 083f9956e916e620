// What LoRA adapters add to the result of a product (Hu et al., arXiv:2106.09685). Neighbouring rows with the same adapter, as those
// of a prompt, are processed together, up to SOME at a time, so that its weights are read once for them.
#pragma once
#include "kernels.h"

namespace VARIANT::lora {

using namespace simd;

constexpr int SOME = 4;

// low[t][r] = scale * the product of row t of x with row r of A. R rows of A at a time.
template <int T, int R>
void shrink(const Lora &task, const bf16 *x, const bf16 *a, float scale, float (*low)[MAX_RANK], int64_t r) {
  Float sums[T][R];
  float rest[T][R] = {};
  for (auto &row : sums)
    for (auto &one : row) one = zero();
  int64_t i = 0;
  for (; i + W <= task.k; i += W) {
    Float own[T];
    for (int t = 0; t < T; t++) own[t] = load_bf16(x + t * task.x_stride + i);
    for (int j = 0; j < R; j++) {
      Float weight = load_bf16(a + (r + j) * task.k + i);
      for (int t = 0; t < T; t++) sums[t][j] = fma(own[t], weight, sums[t][j]);
    }
  }
  for (; i < task.k; i++)
    for (int j = 0; j < R; j++)
      for (int t = 0; t < T; t++)
        rest[t][j] += single::widened(x[t * task.x_stride + i]) * single::widened(a[(r + j) * task.k + i]);
  for (int t = 0; t < T; t++)
    for (int j = 0; j < R; j++) low[t][r + j] = scale * (sum(sums[t][j]) + rest[t][j]);
}

// Adds low B to V * W outputs of T rows, from `at` on.
template <int T, int V>
void expand(const Lora &task, bf16 *y, const bf16 *b, const float (*low)[MAX_RANK], int64_t at) {
  Float sums[T][V];
  for (int t = 0; t < T; t++)
    for (int v = 0; v < V; v++) sums[t][v] = load_bf16(y + t * task.y_stride + at + v * W);
  for (int64_t r = 0; r < task.rank; r++)
    for (int v = 0; v < V; v++) {
      Float weight = load_bf16(b + r * task.n + at + v * W);
      for (int t = 0; t < T; t++) sums[t][v] = fma(set(low[t][r]), weight, sums[t][v]);
    }
  for (int t = 0; t < T; t++)
    for (int v = 0; v < V; v++) store_bf16(y + t * task.y_stride + at + v * W, sums[t][v]);
}

// T rows, from `row` on, with the adapter in one slot.
template <int T> void some(const Lora &task, int64_t row, int64_t slot) {
  constexpr int R = T == 1 ? 8 : 4, V = T == 1 ? 4 : 2;
  float low[T][MAX_RANK];
  const bf16 *x = task.x + row * task.x_stride;
  const bf16 *b = task.b + slot * task.rank * task.n;
  bf16 *y = task.y + row * task.y_stride;
  for (int64_t layer = 0, start = 0; layer < task.layers; start = task.ends[layer++]) {
    const bf16 *a = task.a + (slot * task.layers + layer) * task.rank * task.k;
    int64_t r = 0, at = start, end = task.ends[layer];
    for (; r + R <= task.rank; r += R) shrink<T, R>(task, x, a, task.scales[slot], low, r);
    for (; r < task.rank; r++) shrink<T, 1>(task, x, a, task.scales[slot], low, r);
    for (; at + V * W <= end; at += V * W) expand<T, V>(task, y, b, low, at);
    for (; at + W <= end; at += W) expand<T, 1>(task, y, b, low, at);
    for (; at < end; at++)
      for (int t = 0; t < T; t++) {
        float value = single::widened(y[t * task.y_stride + at]);
        for (r = 0; r < task.rank; r++) value += low[t][r] * single::widened(b[r * task.n + at]);
        y[t * task.y_stride + at] = single::rounded(value);
      }
  }
}

inline void rows(const Lora &task, int64_t first, int64_t last) {
  for (int64_t row = first; row < last;) {
    int64_t slot = task.slots[row], end = row + 1;
    while (end < last && end - row < SOME && task.slots[end] == slot) end++;
    if (slot >= 0 && end - row == SOME)
      some<SOME>(task, row, slot);
    else if (slot >= 0)
      for (int64_t one = row; one < end; one++) some<1>(task, one, slot);
    row = end;
  }
}

}  // namespace VARIANT::lora
