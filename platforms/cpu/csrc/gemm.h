// Products with packed weights: a tile of rows by two vectors of outputs whose sums stay in registers, over all of k.
#pragma once
#include <cstring>

#include "kernels.h"

namespace VARIANT::gemm {

using namespace simd;

constexpr int HALF = PANEL / 2;
constexpr int64_t STRETCH = 384;  // rows of x that stay in a cache while the panels go by
constexpr int AHEAD = 24;         // pairs of k that weights are fetched ahead

inline uint32_t pair(const bf16 *x) {
  uint32_t bits;
  std::memcpy(&bits, x, sizeof bits);
  return bits;
}

// Adds to the sums of M rows the products of k of their elements with two vectors of packed pairs; `step` elements lead
// from one pair of k to the next. FETCH: pairs ahead that are fetched from memory.
template <int M, int FETCH = 0> inline void accumulate(const bf16 *x, int64_t stride, const bf16 *left, const bf16 *right, int64_t step,
                                        int64_t k, Float (&sum)[M][2]) {
  for (int64_t p = 0; p < k / 2; p++, left += step, right += step) {
    if constexpr (FETCH > 0) {
      prefetch(left + FETCH * step);
      prefetch(right + FETCH * step);
    }
    Pairs first = load_pairs(left), second = load_pairs(right);
    for (int m = 0; m < M; m++) {
      Pairs of_row = set_pair(pair(x + m * stride + 2 * p));
      sum[m][0] = dot(sum[m][0], of_row, first);
      sum[m][1] = dot(sum[m][1], of_row, second);
    }
  }
  if (k % 2) {
    Pairs first = only_first(load_pairs(left)), second = only_first(load_pairs(right));
    for (int m = 0; m < M; m++) {
      Pairs of_row = set_pair(x[m * stride + k - 1]);
      sum[m][0] = dot(sum[m][0], of_row, first);
      sum[m][1] = dot(sum[m][1], of_row, second);
    }
  }
}

template <int M> inline void clear(Float (&sum)[M][2]) {
  for (auto &row : sum) row[0] = row[1] = zero();
}

// Writes up to W results.
inline void put(bf16 *out, Float x, int64_t room) {
  if (room >= W) return store_bf16(out, x);
  bf16 whole[W];
  store_bf16(whole, x);
  if (room > 0) std::memcpy(out, whole, room * sizeof(bf16));
}

inline Float bias_at(const bf16 *bias, int64_t room) {
  if (room >= W) return load_bf16(bias);
  bf16 whole[W] = {};
  if (room > 0) std::memcpy(whole, bias, room * sizeof(bf16));
  return load_bf16(whole);
}

inline Float activated(Float x, Activation activation) {
  if (activation == Activation::silu) return div(x, add(set(1.0f), exp(sub(zero(), x))));
  // gelu_tanh: x * sigmoid(2 sqrt(2 / pi) (x + 0.044715 x^3))
  Float inner = mul(set(1.5957691216f), mul(x, fma(mul(x, x), set(0.044715f), set(1.0f))));
  return div(x, add(set(1.0f), exp(sub(zero(), inner))));
}

template <int M> void of_linear(const Linear &task, int64_t row, int64_t panel) {
  const bf16 *packed = task.packed + panel * ((task.k + 1) / 2) * 2 * PANEL;
  for (int left = 0; left < HALF; left += W) {
    Float sum[M][2];
    clear(sum);
    const bf16 *at = packed + 2 * left;
    accumulate<M, AHEAD>(task.x + row * task.x_stride, task.x_stride, at, at + PANEL, 2 * PANEL, task.k, sum);
    for (int side = 0; side < 2; side++) {
      int64_t column = panel * PANEL + side * HALF + left, room = task.n - column;
      Float bias = task.bias ? bias_at(task.bias + column, room) : zero();
      for (int m = 0; m < M; m++) put(task.out + (row + m) * task.out_stride + column, add(sum[m][side], bias), room);
    }
  }
}

template <int M> void of_gate_up(const GateUp &task, int64_t row, int64_t panel) {
  const bf16 *x = task.x + row * task.x_stride;
  int64_t apart = (task.k + 1) / 2 * 2 * PANEL;
  const bf16 *gates = task.packed + panel * apart, *ups = gates + task.n / PANEL * apart;
  for (int left = 0; left < HALF; left += W) {
    Float sum[M][2];
    float gate[M][2][W];
    clear(sum);
    accumulate<M, AHEAD>(x, task.x_stride, gates + 2 * left, gates + 2 * left + PANEL, 2 * PANEL, task.k, sum);
    for (int m = 0; m < M; m++)
      for (int side = 0; side < 2; side++) store(gate[m][side], activated(sum[m][side], task.activation));
    clear(sum);
    accumulate<M, AHEAD>(x, task.x_stride, ups + 2 * left, ups + 2 * left + PANEL, 2 * PANEL, task.k, sum);
    bf16 *out = task.out + row * task.out_stride + panel * PANEL + left;
    for (int m = 0; m < M; m++, out += task.out_stride)
      for (int side = 0; side < 2; side++) store_bf16(out + side * HALF, mul(load(gate[m][side]), sum[m][side]));
  }
}

// All rows of a task with its panels from first to last. Rows are dealt out to tiles as evenly as can be: a tile of few
// rows costs nearly as much as a full one.
template <class Task, class Tiles> inline void walk(const Task &task, int64_t first, int64_t last, const Tiles &tiles) {
  for (int64_t start = 0; start < task.m; start += STRETCH) {
    int64_t rows = task.m - start < STRETCH ? task.m - start : STRETCH;
    int64_t count = (rows + ROWS - 1) / ROWS;
    for (int64_t panel = first; panel < last; panel++)
      for (int64_t tile = 0, row = start; tile < count; tile++) {
        int height = (int)((rows * (tile + 1)) / count - (rows * tile) / count);
        tiles.at[height](task, row, panel);
        row += height;
      }
  }
}

template <class Task> struct Tiles {
  using Tile = void (*)(const Task &, int64_t, int64_t);
  Tile at[ROWS + 1] = {};
};

template <int M> constexpr void fill(Tiles<Linear> &plain, Tiles<GateUp> &gated) {
  plain.at[M] = of_linear<M>;
  gated.at[M] = of_gate_up<M>;
  if constexpr (M > 1) fill<M - 1>(plain, gated);
}
struct All {
  Tiles<Linear> plain;
  Tiles<GateUp> gated;
  constexpr All() { fill<ROWS>(plain, gated); }
};
constexpr All TILES;

inline void linear(const Linear &task, int64_t first, int64_t last) { walk(task, first, last, TILES.plain); }
inline void gate_up(const GateUp &task, int64_t first, int64_t last) { walk(task, first, last, TILES.gated); }

}  // namespace VARIANT::gemm
