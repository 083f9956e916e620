// Products with packed weights: a tile of rows by two vectors of outputs whose sums stay in registers, over all of k.
#pragma once
#include <cstring>

#include "kernels.h"

namespace VARIANT::gemm {

using namespace simd;
using terms::four_bytes;

constexpr int HALF = PANEL / 2;
constexpr int AHEAD = 24;     // steps of a product that a tile alone fetches ahead
constexpr int64_t LINE = 64;  // bytes that come from memory at once

inline int64_t groups_of(int64_t k, int64_t size) { return (k + size - 1) / size; }

template <int M> inline void clear(Float (&sum)[M][2]) {
  for (auto &row : sum) row[0] = row[1] = zero();
}

// Where a tile is: its first row, its panel, and which it is of the tiles that take the panel one after the other.
struct At {
  int64_t row, panel, tile, tiles;
};

// Brings weights near, step by step. One tile alone fetches what it takes itself a little later. Of several only the first
// would wait for memory, so each fetches a part of the next panel.
struct Fetch {
  static constexpr int64_t OF_STEP = 4 * PANEL;  // bytes
  const char *from;
  int64_t lines;  // that a tile of several fetches, one a step
  Fetch(const void *weights, int64_t steps, const At &at) : lines(at.tiles == 1 ? 0 : steps * OF_STEP / LINE / at.tiles) {
    from = (const char *)weights + (lines ? steps * OF_STEP + at.tile * lines * LINE : AHEAD * OF_STEP);
  }
  void operator()(int64_t step) const {
    if (!lines) {
      prefetch(from + step * OF_STEP);
      prefetch(from + step * OF_STEP + LINE);
    } else if (step < lines) {
      prefetch_ahead(from + step * LINE);
    }
  }
};

// The sums of M rows with the outputs at `left` and HALF + left of a panel, for each kind of weight.
struct Bf16 {
  template <int M> static void sums(const Product &task, const At &at, int left, Float (&sum)[M][2]) {
    clear(sum);
    int64_t pairs = groups_of(task.k, 2);
    const bf16 *weights = (const bf16 *)task.packed + at.panel * pairs * 2 * PANEL + 2 * left;
    Fetch fetch(weights, pairs, at);
    terms::accumulate(terms::rows_of<M>(task, at.row), weights, weights + PANEL, 2 * PANEL, task.k, sum, fetch);
  }
};

struct Int8 {
  template <int M> static void sums(const Product &task, const At &at, int left, Float (&sum)[M][2]) {
    auto rows = terms::byte_rows_of<M>(task, at.row);
    int64_t quads = groups_of(task.k, 4);
    const uint8_t *weights = (const uint8_t *)task.packed + at.panel * quads * 4 * PANEL + 4 * left;
    Fetch fetch(weights, quads, at);
    Whole whole[M][2];
    for (int m = 0; m < M; m++) whole[m][0] = whole[m][1] = set_whole(-128 * task.x_sum[at.row + m]);
    for (int64_t q = 0; q < quads; q++, weights += 4 * PANEL) {
      fetch(q);
      terms::add_products<M>(rows, q, weights, weights + 4 * HALF, whole);
    }
    const float *scale = (const float *)task.scale + at.panel * PANEL + left;
    Float first = load(scale), second = load(scale + HALF);
    for (int m = 0; m < M; m++) {
      Float of_row = set(task.x_scale[at.row + m]);
      sum[m][0] = mul(to_float(whole[m][0]), mul(first, of_row));
      sum[m][1] = mul(to_float(whole[m][1]), mul(second, of_row));
    }
  }
};

struct Int4 {
  // Of four elements of each row.
  template <int M>
  static void add_products(const int8_t *x, int64_t stride, Quads first, Quads second, Nibbles (&part)[M][2]) {
    for (int m = 0; m < M; m++) {
      Quads of_row = set_quad(four_bytes(x + m * stride));
      part[m][0] = dot_nibbles(part[m][0], first, of_row);
      part[m][1] = dot_nibbles(part[m][1], second, of_row);
    }
  }

  template <int M> static void sums(const Product &task, const At &at, int left, Float (&sum)[M][2]) {
    const int8_t *x = (const int8_t *)task.x + at.row * task.x_stride;
    int64_t groups = task.k / task.group, step = 0;
    const uint8_t *weights = (const uint8_t *)task.packed + at.panel * (task.k / 8) * 4 * PANEL + 4 * left;
    const bf16 *scale = (const bf16 *)task.scale + at.panel * groups * PANEL + left;
    Fetch fetch(weights, task.k / 8, at);
    clear(sum);
    for (int64_t g = 0; g < groups; g++, scale += PANEL)
      for (int64_t i = 0; i < task.group; i += NIBBLES) {
        auto before = [&](int m) { return i ? 0 : -8 * task.x_sum[(at.row + m) * groups + g]; };
        int64_t last = task.group < i + NIBBLES ? task.group : i + NIBBLES;
        Nibbles part[M][2];
        for (int m = 0; m < M; m++) part[m][0] = part[m][1] = set_nibbles(before(m));
        for (int64_t j = i; j < last; j += 8, x += 8, weights += 4 * PANEL) {
          fetch(step++);
          Quads first = load_quads(weights), second = load_quads(weights + 4 * HALF);
          add_products(x, task.x_stride, low_halves(first), low_halves(second), part);
          add_products(x + 4, task.x_stride, high_halves(first), high_halves(second), part);
        }
        Float first = load_bf16(scale), second = load_bf16(scale + HALF);
        for (int m = 0; m < M; m++) {
          sum[m][0] = fma(to_float(total(part[m][0], before(m))), first, sum[m][0]);
          sum[m][1] = fma(to_float(total(part[m][1], before(m))), second, sum[m][1]);
        }
      }
    for (int m = 0; m < M; m++) {
      Float of_row = set(task.x_scale[at.row + m]);
      sum[m][0] = mul(sum[m][0], of_row);
      sum[m][1] = mul(sum[m][1], of_row);
    }
  }
};

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

template <class Kind, int M> void of_linear(const Product &task, const At &at) {
  for (int left = 0; left < HALF; left += W) {
    Float sum[M][2];
    Kind::template sums<M>(task, at, left, sum);
    for (int side = 0; side < 2; side++) {
      int64_t column = at.panel * PANEL + side * HALF + left, room = task.n - column;
      Float bias = task.bias ? bias_at(task.bias + column, room) : zero();
      for (int m = 0; m < M; m++) put(task.out + (at.row + m) * task.out_stride + column, add(sum[m][side], bias), room);
    }
  }
}

template <class Kind, int M> void of_gate_up(const Product &task, const At &at) {
  At other{at.row, task.n / PANEL + at.panel, at.tile, at.tiles};
  for (int left = 0; left < HALF; left += W) {
    Float sum[M][2];
    float gate[M][2][W];
    Kind::template sums<M>(task, at, left, sum);
    for (int m = 0; m < M; m++)
      for (int side = 0; side < 2; side++) store(gate[m][side], activated(sum[m][side], task.activation));
    Kind::template sums<M>(task, other, left, sum);
    bf16 *out = task.out + at.row * task.out_stride + at.panel * PANEL + left;
    for (int m = 0; m < M; m++, out += task.out_stride)
      for (int side = 0; side < 2; side++) store_bf16(out + side * HALF, mul(load(gate[m][side]), sum[m][side]));
  }
}

using Tile = void (*)(const Product &task, const At &at);
struct Tiles {
  Tile at[ROWS + 1] = {};
};

// All rows of a task with its panels from first to last.
inline void walk(const Product &task, int64_t first, int64_t last, const Tiles &tiles) {
  for (int64_t start = 0; start < task.m; start += TOGETHER) {
    int64_t rows = task.m - start < TOGETHER ? task.m - start : TOGETHER, count = terms::tiles_of(rows);
    for (int64_t panel = first; panel < last; panel++)
      for (int64_t tile = 0; tile < count; tile++) {
        int64_t row = terms::first_of_tile(rows, tile), height = terms::first_of_tile(rows, tile + 1) - row;
        tiles.at[height](task, {start + row, panel, tile, count});
      }
  }
}

template <class Kind, int M> constexpr void fill(Tiles &plain, Tiles &gated) {
  plain.at[M] = of_linear<Kind, M>;
  gated.at[M] = of_gate_up<Kind, M>;
  if constexpr (M > 1) fill<Kind, M - 1>(plain, gated);
}
template <class Kind> struct Both {
  Tiles plain, gated;
  constexpr Both() { fill<Kind, ROWS>(plain, gated); }
};
template <class Kind> constexpr Both<Kind> TILES;

template <class Kind> void linear(const Product &task, int64_t first, int64_t last) {
  walk(task, first, last, TILES<Kind>.plain);
}
template <class Kind> void gate_up(const Product &task, int64_t first, int64_t last) {
  walk(task, first, last, TILES<Kind>.gated);
}

}  // namespace VARIANT::gemm
