// Products with packed weights. A tile of rows by a few vectors of outputs keeps its sums in registers over a block of k. All
// tiles process a block before the next one begins, so that its weights are still in the L2 cache.
#pragma once
#include <cstring>

#include "weights/bf16.h"
#include "weights/int4.h"
#include "weights/int8.h"

namespace VARIANT::gemm {

// The number of a panel's vectors that M rows process at once: all of them if few rows leave enough registers for the sums.
template <int M> constexpr int ABREAST = M <= 2 ? PANEL / W : 2;
constexpr int64_t BLOCK = 64 << 10;  // bytes of a panel's weights that stay in the cache while all rows use them
constexpr int64_t ROOM = 1 << 20;    // bytes of rows that are widened at a time
// The number of gate panels that a single tile of rows processes before the matching up panels. A processor that prefetches one
// stream by itself has to detect it again after each jump.
constexpr int RUN = READS_AHEAD ? 16 : 1;

// The sums of a panel between one block of k and the next, in row order.
struct Kept {
  alignas(64) char numbers[TOGETHER * PANEL * sizeof(float)];
};

// Adds a block to the sums of a tile. Returns whether they are complete: then they are in `result`, otherwise in `kept`. Inlined,
// because GCC would otherwise keep more of them in memory.
template <class Kind, class Fetcher, int M, int V>
[[gnu::always_inline]] inline bool sums(const Product &task, const At &at, int left, Kept &kept, Float (&result)[M][V]) {
  typename Kind::Sum sum[M][V];
  auto *here = (typename Kind::Number *)kept.numbers + at.row % TOGETHER * PANEL + left;
  if (!at.from) {
    Kind::begin(task, at, sum);
  } else {
    for (int m = 0; m < M; m++)
      for (int v = 0; v < V; v++) sum[m][v] = load(here + m * PANEL + v * W);
  }
  Kind::template add<Fetcher>(task, at, left, sum);
  if (at.to == task.k) {
    Kind::end(task, at, left, sum, result);
    return true;
  }
  for (int m = 0; m < M; m++)
    for (int v = 0; v < V; v++) store(here + m * PANEL + v * W, sum[m][v]);
  return false;
}

// Stores up to W results.
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

template <class Kind, int M, class Fetcher> void of_linear(const Product &task, const At &at, Kept *kept) {
  constexpr int V = ABREAST<M>;
  for (int left = 0; left < PANEL; left += V * W) {
    Float sum[M][V];
    if (!sums<Kind, Fetcher>(task, at, left, *kept, sum)) continue;
    for (int v = 0; v < V; v++) {
      int64_t column = at.panel * PANEL + left + v * W, room = task.n - column;
      Float bias = task.bias ? bias_at(task.bias + column, room) : zero();
      for (int m = 0; m < M; m++) put(task.out + (at.row + m) * task.out_stride + column, add(sum[m][v], bias), room);
    }
  }
}

template <class Kind, int M, class Fetcher> void of_gate_up(const Product &task, const At &at, Kept *kept) {
  constexpr int V = ABREAST<M>;
  At other = at;
  other.panel += task.n / PANEL;
  for (int left = 0; left < PANEL; left += V * W) {
    Float sum[M][V];
    float gate[M][V][W];
    if (sums<Kind, Fetcher>(task, at, left, kept[0], sum))
      for (int m = 0; m < M; m++)
        for (int v = 0; v < V; v++) store(gate[m][v], activated(sum[m][v], task.activation));
    if (!sums<Kind, Fetcher>(task, other, left, kept[1], sum)) continue;
    bf16 *out = task.out + at.row * task.out_stride + at.panel * PANEL + left;
    for (int m = 0; m < M; m++, out += task.out_stride)
      for (int v = 0; v < V; v++) store_bf16(out + v * W, mul(load(gate[m][v]), sum[m][v]));
  }
}

// For rows that fit in one tile, with a run of panels. k is not divided into blocks, since no other tile reuses the weights.
template <class Kind, int M, class Take> void of_whole(const Product &task, int64_t first, int64_t last, Take &&take) {
  constexpr int V = ABREAST<M>;
  for (int64_t panel = first; panel < last; panel++)
    for (int left = 0; left < PANEL; left += V * W) {
      At at{0, panel, 0, task.k, 0, 1};
      typename Kind::Sum sum[M][V];
      Float whole[M][V];
      Kind::begin(task, at, sum);
      Kind::template add<Fetch<way_of(ONLY_TILE, M)>>(task, at, left, sum);
      Kind::end(task, at, left, sum, whole);
      for (int m = 0; m < M; m++)
        for (int v = 0; v < V; v++) take(panel - first, m, left + v * W, whole[m][v]);
    }
}

template <class Kind, int M> void of_run(const Product &task, int64_t first, int64_t last) {
  alignas(64) float gates[RUN][M][PANEL];
  of_whole<Kind, M>(task, first, last, [&](int64_t panel, int m, int column, Float gate) {
    store(gates[panel][m] + column, gate);
  });
  float *gate = gates[0][0], *end = gates[last - first - 1][M];
  for (; gate < end; gate += W) store(gate, activated(load(gate), task.activation));
  bf16 *out = task.out + first * PANEL;
  int64_t behind = task.n / PANEL;
  of_whole<Kind, M>(task, first + behind, last + behind, [&](int64_t panel, int m, int column, Float up) {
    store_bf16(out + m * task.out_stride + panel * PANEL + column, mul(load(gates[panel][m] + column), up));
  });
}

using Tile = void (*)(const Product &task, const At &at, Kept *kept);
using Run = void (*)(const Product &task, int64_t first, int64_t last);

// The number of elements of k in a block.
template <class Kind> int64_t block_of(const Product &task) {
  int64_t most = BLOCK * 8 / (PANEL * Kind::BITS), blocks = (task.k + most - 1) / most, unit = Kind::unit(task);
  return ((task.k + blocks - 1) / blocks + unit - 1) / unit * unit;
}

// Processes all rows of a task with panels first to last: take(at, height, kept) processes a tile of `height` rows, up to `most`.
template <class Kind, class Take> void walk(const Product &task, int64_t first, int64_t last, int64_t most, Take &&take) {
  Kept kept[2];
  int64_t block = block_of<Kind>(task);
  for (int64_t start = 0; start < task.m; start += TOGETHER) {
    int64_t rows = task.m - start < TOGETHER ? task.m - start : TOGETHER, count = terms::tiles_of(rows, most);
    for (int64_t panel = first; panel < last; panel++)
      for (int64_t from = 0; from < task.k; from += block)
        for (int64_t tile = 0; tile < count; tile++) {
          int64_t row = terms::first_of_tile(rows, tile, most), end = terms::first_of_tile(rows, tile + 1, most);
          int64_t to = task.k - from < block ? task.k : from + block;
          take(At{start + row, panel, from, to, tile, count}, end - row, kept);
        }
  }
}
template <class Kind> void walk(const Product &task, int64_t first, int64_t last, const Tile (*tiles)[ROWS + 1]) {
  auto take = [&](const At &at, int64_t height, Kept *kept) { tiles[way_of(at, height)][height](task, at, kept); };
  walk<Kind>(task, first, last, ROWS, take);
}

// What a tile of M rows is compiled for: most tiles add up in order anyway.
template <class Kind, int M> struct Compiled {
  using Of = Kind;
};
template <int M> struct Compiled<Bf16InOrder, M> {
  static constexpr bool SAME = !terms::FEW || (M > 1 && M * ABREAST<M> >= terms::FEW);
  using Of = std::conditional_t<SAME, Bf16, Bf16InOrder>;
};

// By the way of fetching and the rows of a tile.
struct Tiles {
  Tile plain[WAYS][ROWS + 1] = {}, gated[WAYS][ROWS + 1] = {};
  Run run[ROWS + 1] = {};
};
template <class Kind> struct ByRows : Tiles {
  template <int WAY, int M> constexpr void fill() {
    using Of = typename Compiled<Kind, M>::Of;
    if constexpr (is_used(WAY, M)) {
      plain[WAY][M] = of_linear<Of, M, Fetch<WAY>>;
      gated[WAY][M] = of_gate_up<Of, M, Fetch<WAY>>;
    }
    if constexpr (WAY > 0) fill<WAY - 1, M>();
  }
  template <int M> constexpr void fill() {
    fill<WAYS - 1, M>();
    if constexpr (RUN > 1) run[M] = of_run<typename Compiled<Kind, M>::Of, M>;
    if constexpr (M > 1) fill<M - 1>();
  }
  constexpr ByRows() { fill<ROWS>(); }
};
template <class Kind> constexpr ByRows<Kind> TILES;

template <class Kind> const Tiles &tiles_for(const Product &task) {
  if constexpr (std::is_same_v<Kind, Bf16>)
    if (task.in_order) return TILES<Bf16InOrder>;
  return TILES<Kind>;
}

template <class Kind> void linear(const Product &task, int64_t first, int64_t last) {
  walk<Kind>(task, first, last, tiles_for<Kind>(task).plain);
}
template <class Kind> void gate_up(const Product &task, int64_t first, int64_t last) {
  const Tiles &tiles = tiles_for<Kind>(task);
  if (RUN == 1 || task.m > ROWS) return walk<Kind>(task, first, last, tiles.gated);
  for (; first < last; first += RUN) tiles.run[task.m](task, first, first + RUN < last ? first + RUN : last);
}

template <class Kind> constexpr Multiplying WAY = {linear<Kind>, gate_up<Kind>, Kind::WIDEN, Kind::WIDENED, 4, ROWS, ROOM};
template <class Kind> constexpr Products OF = {WAY<Kind>, WAY<Kind>, 0};

}  // namespace VARIANT::gemm
