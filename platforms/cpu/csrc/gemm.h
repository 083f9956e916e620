// Products with packed weights: a tile of rows by two vectors of outputs whose sums stay in registers, over all of k.
#pragma once
#include <cstring>

#include "kernels.h"

namespace VARIANT::gemm {

using namespace simd;

constexpr int HALF = PANEL / 2;
constexpr int64_t STRETCH = 384;  // rows of x that stay in a cache while the panels go by
constexpr int AHEAD = 24;         // steps of a product that a tile alone fetches ahead
constexpr int64_t LINE = 64;      // bytes that come from memory at once

inline uint32_t four_bytes(const void *x) {
  uint32_t bits;
  std::memcpy(&bits, x, sizeof bits);
  return bits;
}

inline int64_t groups_of(int64_t k, int64_t size) { return (k + size - 1) / size; }

// Adds to the sums of M rows the products of k of their elements with two vectors of packed pairs; `step` elements lead
// from one pair of k to the next. fetch: called with the number of each pair, to bring near what comes later.
template <int M, class Fetcher> inline void accumulate(const bf16 *x, int64_t stride, const bf16 *left, const bf16 *right,
                                                     int64_t step, int64_t k, Float (&sum)[M][2], Fetcher fetch) {
  for (int64_t p = 0; p < k / 2; p++, left += step, right += step) {
    fetch(p);
    Pairs first = load_pairs(left), second = load_pairs(right);
    for (int m = 0; m < M; m++) {
      Pairs of_row = set_pair(four_bytes(x + m * stride + 2 * p));
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
    accumulate((const bf16 *)task.x + at.row * task.x_stride, task.x_stride, weights, weights + PANEL, 2 * PANEL, task.k,
               sum, Fetch(weights, pairs, at));
  }
};

struct Int8 {
  template <int M> static void sums(const Product &task, const At &at, int left, Float (&sum)[M][2]) {
    const int8_t *x = (const int8_t *)task.x + at.row * task.x_stride;
    int64_t quads = groups_of(task.k, 4);
    const uint8_t *weights = (const uint8_t *)task.packed + at.panel * quads * 4 * PANEL + 4 * left;
    Fetch fetch(weights, quads, at);
    Whole whole[M][2];
    for (int m = 0; m < M; m++) whole[m][0] = whole[m][1] = set_whole(-128 * task.x_sum[at.row + m]);
    for (int64_t q = 0; q < quads; q++, weights += 4 * PANEL) {
      fetch(q);
      Quads first = load_quads(weights), second = load_quads(weights + 4 * HALF);
      for (int m = 0; m < M; m++) {
        Quads of_row = set_quad(four_bytes(x + m * task.x_stride + 4 * q));
        whole[m][0] = dot(whole[m][0], first, of_row);
        whole[m][1] = dot(whole[m][1], second, of_row);
      }
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
  template <int M> static void sums(const Product &task, const At &at, int left, Float (&sum)[M][2]) {
    const int8_t *x = (const int8_t *)task.x + at.row * task.x_stride;
    int64_t groups = task.k / task.group, step = 0;
    const uint8_t *weights = (const uint8_t *)task.packed + at.panel * (task.k / 8) * 4 * PANEL + 4 * left;
    const bf16 *scale = (const bf16 *)task.scale + at.panel * groups * PANEL + left;
    Fetch fetch(weights, task.k / 8, at);
    clear(sum);
    for (int64_t g = 0; g < groups; g++, scale += PANEL) {
      Whole whole[M][2];
      for (int m = 0; m < M; m++) whole[m][0] = whole[m][1] = set_whole(-8 * task.x_sum[(at.row + m) * groups + g]);
      for (int64_t i = 0; i < task.group; i += 8, weights += 4 * PANEL) {
        fetch(step++);
        Quads first = load_quads(weights), second = load_quads(weights + 4 * HALF);
        Quads first_low = low_halves(first), second_low = low_halves(second);
        first = high_halves(first), second = high_halves(second);
        for (int m = 0; m < M; m++) {
          const int8_t *at = x + m * task.x_stride + g * task.group + i;
          Quads low = set_quad(four_bytes(at)), high = set_quad(four_bytes(at + 4));
          whole[m][0] = dot(dot(whole[m][0], first_low, low), first, high);
          whole[m][1] = dot(dot(whole[m][1], second_low, low), second, high);
        }
      }
      Float first = load_bf16(scale), second = load_bf16(scale + HALF);
      for (int m = 0; m < M; m++) {
        sum[m][0] = fma(to_float(whole[m][0]), first, sum[m][0]);
        sum[m][1] = fma(to_float(whole[m][1]), second, sum[m][1]);
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

// All rows of a task with its panels from first to last. Rows are dealt out to tiles as evenly as can be: a tile of few
// rows costs nearly as much as a full one.
inline void walk(const Product &task, int64_t first, int64_t last, const Tiles &tiles) {
  for (int64_t start = 0; start < task.m; start += STRETCH) {
    int64_t rows = task.m - start < STRETCH ? task.m - start : STRETCH;
    int64_t count = (rows + ROWS - 1) / ROWS;
    for (int64_t panel = first; panel < last; panel++)
      for (int64_t tile = 0, row = start; tile < count; tile++) {
        int height = (int)((rows * (tile + 1)) / count - (rows * tile) / count);
        tiles.at[height](task, {row, panel, tile, count});
        row += height;
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
