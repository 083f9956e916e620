// Products with packed weights. A tile of rows by a few vectors of outputs keeps its sums in registers over a block of k. All
// tiles process a block before the next one begins, so that its weights are still in the L2 cache.
#pragma once
#include <cstring>

#include "numbers.h"
#include "weights/bf16.h"
#include "weights/coded.h"
#include "weights/floats.h"

namespace VARIANT::gemm {

// The number of a panel's vectors that M rows process at once: all of them if few rows leave enough registers for the sums.
template <int M> constexpr int ABREAST = M <= 2 ? PANEL / W : 2;
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
template <class Result> inline void put(Result *out, Float x, int64_t room) {
  if (room >= W) return numbers::put(out, x);
  if (room > 0) numbers::put_some(out, x, room);
}

template <class Result> inline Float bias_at(const Result *bias, int64_t room) {
  if (room >= W) return numbers::take(bias);
  return room > 0 ? numbers::take_some(bias, room) : zero();
}

template <class Kind, int M, class Fetcher> void of_linear(const Product &task, const At &at, Kept *kept) {
  using Result = typename Kind::Result;
  constexpr int V = ABREAST<M>;
  auto *out = (Result *)task.out + at.row * task.out_stride;
  auto *bias = (const Result *)task.bias;
  for (int left = 0; left < PANEL; left += V * W) {
    Float sum[M][V];
    if (!sums<Kind, Fetcher>(task, at, left, *kept, sum)) continue;
    for (int v = 0; v < V; v++) {
      int64_t column = at.panel * PANEL + left + v * W, room = task.n - column;
      Float more = bias ? bias_at(bias + column, room) : zero();
      for (int m = 0; m < M; m++) put(out + m * task.out_stride + column, add(sum[m][v], more), room);
    }
  }
}

template <class Kind, int M, class Fetcher> void of_gate_up(const Product &task, const At &at, Kept *kept) {
  constexpr int V = ABREAST<M>;
  At other = at;
  other.panel += task.n / PANEL;
  other.room = (const typename Kind::Room *)at.room + 1;
  for (int left = 0; left < PANEL; left += V * W) {
    Float sum[M][V];
    float gate[M][V][W];
    if (sums<Kind, Fetcher>(task, at, left, kept[0], sum))
      for (int m = 0; m < M; m++)
        for (int v = 0; v < V; v++) store(gate[m][v], activated(sum[m][v], task.activation));
    if (!sums<Kind, Fetcher>(task, other, left, kept[1], sum)) continue;
    auto *out = (typename Kind::Result *)task.out + at.row * task.out_stride + at.panel * PANEL + left;
    for (int m = 0; m < M; m++, out += task.out_stride)
      for (int v = 0; v < V; v++) numbers::put(out + v * W, mul(load(gate[m][v]), sum[m][v]));
  }
}

// For rows that fit in one tile, with a run of panels. Sums stay in registers from block to block.
template <class Kind, int M, class Take> void of_whole(const Product &task, int64_t first, int64_t last, Take &&take) {
  constexpr int V = ABREAST<M>;
  typename Kind::Room room;
  int64_t block = Kind::WHOLE ? task.k : Kind::block(task);
  for (int64_t panel = first; panel < last; panel++)
    for (int left = 0; left < PANEL; left += V * W) {
      At at{0, panel, 0, task.k, 0, 1, &room};
      typename Kind::Sum sum[M][V];
      Float whole[M][V];
      Kind::begin(task, at, sum);
      for (at.from = 0; at.from < task.k; at.from = at.to) {
        at.to = task.k - at.from < block ? task.k : at.from + block;
        Kind::ready(task, panel, at.from, at.to, room);
        Kind::template add<typename Kind::template Fetcher<way_of(ONLY_TILE, M)>>(task, at, left, sum);
      }
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
  auto *out = (typename Kind::Result *)task.out + first * PANEL;
  int64_t behind = task.n / PANEL;
  of_whole<Kind, M>(task, first + behind, last + behind, [&](int64_t panel, int m, int column, Float up) {
    numbers::put(out + m * task.out_stride + panel * PANEL + column, mul(load(gates[panel][m] + column), up));
  });
}

using Tile = void (*)(const Product &task, const At &at, Kept *kept);
using Run = void (*)(const Product &task, int64_t first, int64_t last);

// Processes all rows of a task with panels first to last: take(at, height, kept) processes a tile of `height` rows, up to `most`.
// sides: 2 if each panel comes with its up panel.
template <class Kind, class Take>
void walk(const Product &task, int64_t first, int64_t last, int64_t most, int sides, Take &&take) {
  Kept kept[2];
  typename Kind::Room rooms[2];
  int64_t block = Kind::block(task);
  for (int64_t start = 0; start < task.m; start += TOGETHER) {
    int64_t rows = task.m - start < TOGETHER ? task.m - start : TOGETHER, count = terms::tiles_of(rows, most);
    for (int64_t panel = first; panel < last; panel++)
      for (int64_t from = 0; from < task.k; from += block) {
        int64_t to = task.k - from < block ? task.k : from + block;
        for (int side = 0; side < sides; side++) Kind::ready(task, panel + side * (task.n / PANEL), from, to, rooms[side]);
        for (int64_t tile = 0; tile < count; tile++) {
          int64_t row = terms::first_of_tile(rows, tile, most), end = terms::first_of_tile(rows, tile + 1, most);
          take(At{start + row, panel, from, to, tile, count, rooms}, end - row, kept);
        }
      }
  }
}
template <class Kind> void walk(const Product &task, int64_t first, int64_t last, int sides, const Tile (*tiles)[ROWS + 1]) {
  auto take = [&](const At &at, int64_t height, Kept *kept) { tiles[way_of(at, height)][height](task, at, kept); };
  walk<Kind>(task, first, last, ROWS, sides, take);
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
template <class Kind, int MOST> struct ByRows : Tiles {
  template <int WAY, int M> constexpr void fill() {
    using Of = typename Compiled<Kind, M>::Of;
    if constexpr (is_used(WAY, M)) {
      plain[WAY][M] = of_linear<Of, M, typename Of::template Fetcher<WAY>>;
      gated[WAY][M] = of_gate_up<Of, M, typename Of::template Fetcher<WAY>>;
    }
    if constexpr (WAY > 0) fill<WAY - 1, M>();
  }
  template <int M> constexpr void fill() {
    fill<WAYS - 1, M>();
    if constexpr (RUN > 1) run[M] = of_run<typename Compiled<Kind, M>::Of, M>;
    if constexpr (M > 1) fill<M - 1>();
  }
  constexpr ByRows() { fill<MOST>(); }
};
template <class Kind, int MOST = ROWS> constexpr ByRows<Kind, MOST> TILES;

template <class Kind> void linear(const Product &task, int64_t first, int64_t last, const Tiles &tiles) {
  walk<Kind>(task, first, last, 1, tiles.plain);
}
template <class Kind> void gate_up(const Product &task, int64_t first, int64_t last, const Tiles &tiles) {
  if (RUN == 1 || task.m > ROWS) return walk<Kind>(task, first, last, 2, tiles.gated);
  for (; first < last; first += RUN) tiles.run[task.m](task, first, first + RUN < last ? first + RUN : last);
}

// Calls what multiplies with one kind of weight, with its tiles.
template <class Call> void with_bf16(const Product &task, Call &&call) {
  task.in_order ? call(Bf16InOrder(), TILES<Bf16InOrder>) : call(Bf16(), TILES<Bf16>);
}

// Few rows multiply codes in their own form, since the weights are read once; of four bits, which are widened fastest, all that fit in
// one tile. More rows have them widened first.
constexpr int FEW = ROWS < 4 ? ROWS : 4;
template <class Call> void with_codes(const Product &task, Call &&call) {
  Codes codes = task.coding.codes;
  if (codes == Codes::bytes && task.coding.scaling == Scaling::by_row)
    call(Coded<Bytes, true>(), TILES<Coded<Bytes, true>>);
  else if (codes == Codes::fours && task.m <= ROWS)
    call(Coded<Fours>(), TILES<Coded<Fours>>);
  else if (codes == Codes::fives && task.m <= FEW)
    call(Coded<Fives>(), TILES<Coded<Fives>, FEW>);
  else if (codes == Codes::sixes && task.m <= FEW)
    call(Coded<Sixes>(), TILES<Coded<Sixes>, FEW>);
  else if (codes == Codes::levels && task.m <= FEW)
    call(Coded<Levels>(), TILES<Coded<Levels>, FEW>);
  else if (is_narrow(codes))
    call(Coded<Widened>(), TILES<Coded<Widened>>);
  else
    call(Coded<Bytes>(), TILES<Coded<Bytes>>);
}

inline void linear_bf16(const Product &task, int64_t first, int64_t last) {
  with_bf16(task, [&](auto kind, const Tiles &tiles) { linear<decltype(kind)>(task, first, last, tiles); });
}
inline void gate_up_bf16(const Product &task, int64_t first, int64_t last) {
  with_bf16(task, [&](auto kind, const Tiles &tiles) { gate_up<decltype(kind)>(task, first, last, tiles); });
}
inline void linear_codes(const Product &task, int64_t first, int64_t last) {
  with_codes(task, [&](auto kind, const Tiles &tiles) { linear<decltype(kind)>(task, first, last, tiles); });
}
inline void gate_up_codes(const Product &task, int64_t first, int64_t last) {
  with_codes(task, [&](auto kind, const Tiles &tiles) { gate_up<decltype(kind)>(task, first, last, tiles); });
}

inline void linear_floats(const Product &task, int64_t first, int64_t last) {
  linear<Floats>(task, first, last, TILES<Floats>);
}
inline void gate_up_floats(const Product &task, int64_t first, int64_t last) {
  gate_up<Floats>(task, first, last, TILES<Floats>);
}

constexpr Multiplying BF16_WAY = {linear_bf16, gate_up_bf16, Bf16::WIDEN, Bf16::WIDENED, 4, ROWS, ROOM};
constexpr Multiplying CODES_WAY = {linear_codes, gate_up_codes, nullptr, 0, 0, 0, 0};
constexpr Multiplying FLOATS_WAY = {linear_floats, gate_up_floats, nullptr, 0, 0, 0, 0};
constexpr Products OF_BF16 = {BF16_WAY, BF16_WAY, 0};
constexpr Products OF_CODES = {CODES_WAY, CODES_WAY, 0};
constexpr Products OF_FLOATS = {FLOATS_WAY, FLOATS_WAY, 0};

}  // namespace VARIANT::gemm
