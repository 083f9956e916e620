// Products with packed weights: a tile of rows by a few vectors of outputs whose sums stay in registers over a block of k, and
// all tiles over that block before the next one, so that its weights are still in the second cache.
#pragma once
#include <cstring>

#include "kernels.h"

namespace VARIANT::gemm {

using namespace simd;
using terms::four_bytes;

// Vectors of a panel that M rows take at a time: all where few rows leave registers for their sums.
template <int M> constexpr int ABREAST = M <= 2 ? PANEL / W : 2;
constexpr uint64_t LINE = 64;         // bytes that come from memory at once
constexpr int64_t BLOCK = 128 << 10;  // bytes of a panel's weights that stay near while all rows take them

inline int64_t groups_of(int64_t k, int64_t size) { return (k + size - 1) / size; }

template <int M, int V> inline void clear(Float (&sum)[M][V]) {
  for (auto &row : sum)
    for (auto &vector : row) vector = zero();
}

// Where a tile is: its first row, its panel, which elements of k it takes now, and which it is of the tiles that do so one
// after the other.
struct At {
  int64_t row, panel, from, to, tile, tiles;
};

// Brings weights near, step by step. A panel that is read but once is fetched a little ahead of what takes it. Of one that is
// read in several passes only the first would wait for memory, so each pass fetches a part of what comes after its block.
struct Fetch {
  static constexpr int64_t OF_STEP = 4 * PANEL;  // bytes
  const char *from;
  uint64_t apart;  // bytes that a pass of several fetches each step, or 0
  // width: outputs of a pass; left: where it begins.
  Fetch(const void *weights, int64_t steps, const At &at, int left, int width) {
    int64_t of_tile = PANEL / width, passes = at.tiles * of_tile, pass = at.tile * of_tile + left / width;
    apart = passes == 1 ? 0 : (OF_STEP + passes - 1) / passes;
    from = (const char *)weights - 4 * left + (passes == 1 ? AHEAD * OF_STEP : steps * (OF_STEP + pass * apart));
  }
  void operator()(int64_t step) const {
    uint64_t at = step * apart;
    if (!apart) {
      prefetch(from + step * OF_STEP);
      prefetch(from + step * OF_STEP + LINE);
    } else if (at % LINE < apart) {
      prefetch_ahead(from + at);
    }
  }
};

// Kinds of weight: a vector of sums and what it is made of, bits of an element, and of how many elements blocks of k are
// multiples. Of M rows with V vectors of outputs of a panel, from the left-th on, begin() makes sums, add() adds a block to
// them, and end() makes results of them.
struct Bf16 {
  using Sum = Float;
  using Number = float;
  static constexpr int64_t BITS = 16;
  static int64_t unit(const Product &) { return 8; }

  template <int M, int V> static void begin(const Product &, const At &, Sum (&sum)[M][V]) { clear(sum); }

  template <int M, int V> static void add(const Product &task, const At &at, int left, Sum (&sum)[M][V]) {
    int64_t pairs = groups_of(task.k, 2);
    const bf16 *weights = (const bf16 *)task.packed + (at.panel * pairs + at.from / 2) * 2 * PANEL + 2 * left;
    Fetch fetch(weights, groups_of(at.to - at.from, 2), at, left, V * W);
    terms::accumulate(terms::rows_of<M>(task, at.row, at.from), weights, 2 * W, 2 * PANEL, at.to - at.from, sum, fetch);
  }

  template <int M, int V> static void end(const Product &, const At &, int, const Sum (&sum)[M][V], Float (&result)[M][V]) {
    for (int m = 0; m < M; m++)
      for (int v = 0; v < V; v++) result[m][v] = sum[m][v];
  }
};

struct Int8 {
  using Sum = Whole;
  using Number = int32_t;
  static constexpr int64_t BITS = 8;
  static int64_t unit(const Product &) { return 8; }

  template <int M, int V> static void begin(const Product &task, const At &at, Sum (&sum)[M][V]) {
    for (int m = 0; m < M; m++)
      for (int v = 0; v < V; v++) sum[m][v] = set_whole(-128 * task.x_sum[at.row + m]);
  }

  template <int M, int V> static void add(const Product &task, const At &at, int left, Sum (&sum)[M][V]) {
    auto rows = terms::byte_rows_of<M>(task, at.row, at.from);
    int64_t quads = groups_of(task.k, 4), steps = groups_of(at.to - at.from, 4);
    const uint8_t *weights = (const uint8_t *)task.packed + (at.panel * quads + at.from / 4) * 4 * PANEL + 4 * left;
    Fetch fetch(weights, steps, at, left, V * W);
    for (int64_t q = 0; q < steps; q++, weights += 4 * PANEL) {
      fetch(q);
      terms::add_products(rows, q, weights, sum);
    }
  }

  template <int M, int V>
  static void end(const Product &task, const At &at, int left, const Sum (&sum)[M][V], Float (&result)[M][V]) {
    const float *scale = (const float *)task.scale + at.panel * PANEL + left;
    for (int m = 0; m < M; m++) {
      Float of_row = set(task.x_scale[at.row + m]);
      for (int v = 0; v < V; v++) result[m][v] = mul(to_float(sum[m][v]), mul(load(scale + v * W), of_row));
    }
  }
};

struct Int4 {
  using Sum = Float;
  using Number = float;
  static constexpr int64_t BITS = 4;
  static int64_t unit(const Product &task) { return task.group; }

  template <int M, int V> static void begin(const Product &, const At &, Sum (&sum)[M][V]) { clear(sum); }

  // Of four elements of each row.
  template <int M, int V>
  static void add_products(const int8_t *x, int64_t stride, const Quads (&weight)[V], Nibbles (&part)[M][V]) {
    for (int m = 0; m < M; m++) {
      Quads of_row = set_quad(four_bytes(x + m * stride));
      for (int v = 0; v < V; v++) part[m][v] = dot_nibbles(part[m][v], weight[v], of_row);
    }
  }

  template <int M, int V> static void add(const Product &task, const At &at, int left, Sum (&sum)[M][V]) {
    const int8_t *x = (const int8_t *)task.x + at.row * task.x_stride + at.from;
    int64_t groups = task.k / task.group, step = 0;
    const uint8_t *weights = (const uint8_t *)task.packed + (at.panel * task.k + at.from) / 8 * 4 * PANEL + 4 * left;
    const bf16 *scale = (const bf16 *)task.scale + (at.panel * groups + at.from / task.group) * PANEL + left;
    Fetch fetch(weights, (at.to - at.from) / 8, at, left, V * W);
    for (int64_t g = at.from / task.group; g < at.to / task.group; g++, scale += PANEL)
      for (int64_t i = 0; i < task.group; i += NIBBLES) {
        auto before = [&](int m) { return i ? 0 : -8 * task.x_sum[(at.row + m) * groups + g]; };
        int64_t last = task.group < i + NIBBLES ? task.group : i + NIBBLES;
        Nibbles part[M][V];
        for (int m = 0; m < M; m++)
          for (int v = 0; v < V; v++) part[m][v] = set_nibbles(before(m));
        for (int64_t j = i; j < last; j += 8, x += 8, weights += 4 * PANEL) {
          fetch(step++);
          Quads weight[V], half[V];
          for (int v = 0; v < V; v++) half[v] = low_halves(weight[v] = load_quads(weights + 4 * W * v));
          add_products(x, task.x_stride, half, part);
          for (int v = 0; v < V; v++) half[v] = high_halves(weight[v]);
          add_products(x + 4, task.x_stride, half, part);
        }
        for (int m = 0; m < M; m++)
          for (int v = 0; v < V; v++)
            sum[m][v] = fma(to_float(total(part[m][v], before(m))), load_bf16(scale + v * W), sum[m][v]);
      }
  }

  template <int M, int V>
  static void end(const Product &task, const At &at, int, const Sum (&sum)[M][V], Float (&result)[M][V]) {
    for (int m = 0; m < M; m++) {
      Float of_row = set(task.x_scale[at.row + m]);
      for (int v = 0; v < V; v++) result[m][v] = mul(sum[m][v], of_row);
    }
  }
};

// Sums of a panel between one block of k and the next, one after the other in the order of their rows.
struct Kept {
  alignas(64) char numbers[TOGETHER * PANEL * sizeof(float)];
};

// Adds a block to the sums of a tile. Whether they are whole now: then they are in `result`, else in `kept`. Inlined, or GCC
// has more of them in memory.
template <class Kind, int M, int V>
[[gnu::always_inline]] inline bool sums(const Product &task, const At &at, int left, Kept &kept, Float (&result)[M][V]) {
  typename Kind::Sum sum[M][V];
  auto *here = (typename Kind::Number *)kept.numbers + at.row % TOGETHER * PANEL + left;
  if (!at.from) {
    Kind::begin(task, at, sum);
  } else {
    for (int m = 0; m < M; m++)
      for (int v = 0; v < V; v++) sum[m][v] = load(here + m * PANEL + v * W);
  }
  Kind::add(task, at, left, sum);
  if (at.to == task.k) {
    Kind::end(task, at, left, sum, result);
    return true;
  }
  for (int m = 0; m < M; m++)
    for (int v = 0; v < V; v++) store(here + m * PANEL + v * W, sum[m][v]);
  return false;
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

template <class Kind, int M> void of_linear(const Product &task, const At &at, Kept *kept) {
  constexpr int V = ABREAST<M>;
  for (int left = 0; left < PANEL; left += V * W) {
    Float sum[M][V];
    if (!sums<Kind>(task, at, left, *kept, sum)) continue;
    for (int v = 0; v < V; v++) {
      int64_t column = at.panel * PANEL + left + v * W, room = task.n - column;
      Float bias = task.bias ? bias_at(task.bias + column, room) : zero();
      for (int m = 0; m < M; m++) put(task.out + (at.row + m) * task.out_stride + column, add(sum[m][v], bias), room);
    }
  }
}

template <class Kind, int M> void of_gate_up(const Product &task, const At &at, Kept *kept) {
  constexpr int V = ABREAST<M>;
  At other = at;
  other.panel += task.n / PANEL;
  for (int left = 0; left < PANEL; left += V * W) {
    Float sum[M][V];
    float gate[M][V][W];
    if (sums<Kind>(task, at, left, kept[0], sum))
      for (int m = 0; m < M; m++)
        for (int v = 0; v < V; v++) store(gate[m][v], activated(sum[m][v], task.activation));
    if (!sums<Kind>(task, other, left, kept[1], sum)) continue;
    bf16 *out = task.out + at.row * task.out_stride + at.panel * PANEL + left;
    for (int m = 0; m < M; m++, out += task.out_stride)
      for (int v = 0; v < V; v++) store_bf16(out + v * W, mul(load(gate[m][v]), sum[m][v]));
  }
}

using Tile = void (*)(const Product &task, const At &at, Kept *kept);
struct Tiles {
  Tile at[ROWS + 1] = {};
};

// Elements of k that are taken at a time.
template <class Kind> int64_t block_of(const Product &task) {
  int64_t most = BLOCK * 8 / (PANEL * Kind::BITS), blocks = (task.k + most - 1) / most, unit = Kind::unit(task);
  return ((task.k + blocks - 1) / blocks + unit - 1) / unit * unit;
}

// All rows of a task with its panels from first to last.
template <class Kind> void walk(const Product &task, int64_t first, int64_t last, const Tiles &tiles) {
  Kept kept[2];
  int64_t block = block_of<Kind>(task);
  for (int64_t start = 0; start < task.m; start += TOGETHER) {
    int64_t rows = task.m - start < TOGETHER ? task.m - start : TOGETHER, count = terms::tiles_of(rows);
    for (int64_t panel = first; panel < last; panel++)
      for (int64_t from = 0; from < task.k; from += block)
        for (int64_t tile = 0; tile < count; tile++) {
          int64_t row = terms::first_of_tile(rows, tile), height = terms::first_of_tile(rows, tile + 1) - row;
          int64_t to = task.k - from < block ? task.k : from + block;
          tiles.at[height](task, {start + row, panel, from, to, tile, count}, kept);
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
  walk<Kind>(task, first, last, TILES<Kind>.plain);
}
template <class Kind> void gate_up(const Product &task, int64_t first, int64_t last) {
  walk<Kind>(task, first, last, TILES<Kind>.gated);
}

}  // namespace VARIANT::gemm
