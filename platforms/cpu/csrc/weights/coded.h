// Weights of codes with scales by int8 rows with scales. Products are added up as whole numbers within a unit, whose elements share
// their scales, and as floats from unit to unit, in order.
#pragma once
#include "codes.h"
#include "fetch.h"
#include "scales.h"

namespace VARIANT::gemm {

// A block of k of a panel, ready to be multiplied: its codes, in their own form or widened to bytes, and its scales.
struct Block {
  static constexpr int64_t MOST = 1024;  // elements of k; widened, they leave the L1 cache room for rows
  static constexpr int64_t ALIGNED = 256;
  static constexpr int64_t UNITS = MOST / 8;
  const uint8_t *codes;
  Scales scales;
  const char *packed;  // what the codes were read from
  int64_t bytes;       // of it
  alignas(64) uint8_t wide[MOST * PANEL];
  alignas(64) float scale[UNITS][PANEL], minimum[UNITS][PANEL];
};

inline int64_t spans_of(int64_t k) { return groups_of(k, SPAN); }

// Widens the codes of some spans of a panel to bytes.
template <class From> void widen(const Coding &coding, const uint8_t *from, int64_t spans, uint8_t *to) {
  constexpr int V = PANEL / W;
  From codes(coding, from);
  for (int64_t eight = 0; eight < spans * SPAN / 8; eight++, to += 2 * OF_WORDS) {
    Quads front[V], back[V];
    codes.next(front, back);
    for (int v = 0; v < V; v++) store_quads(to + 4 * W * v, front[v]), store_quads(to + OF_WORDS + 4 * W * v, back[v]);
  }
}

inline void widen(const Coding &coding, const uint8_t *from, int64_t spans, uint8_t *to) {
  constexpr decltype(&widen<Fours>) BY_CODES[] = {nullptr, widen<Fours>, widen<Fives>, widen<Sixes>, widen<Levels>};
  BY_CODES[(int)coding.codes](coding, from, spans, to);
}

// Prefetches packed codes during each unit: of a single tile those that it reads some steps later, of several tiles and passes in
// turn a share each of those after their block. See FetchLines for when a processor does that by itself.
struct Ahead {
  const char *next, *until;
  int64_t each;  // bytes
  template <int M> static Ahead of(const Block &block, const At &at, int left, int width, int64_t units) {
    int64_t of_tile = PANEL / width, passes = at.tiles * of_tile, pass = at.tile * of_tile + left / width;
    if (passes == 1 && READS_AHEAD && M <= 2) return {nullptr, nullptr, 0};
    const char *next = block.packed + (passes == 1 ? AHEAD * OF_STEP : block.bytes + block.bytes * pass / passes);
    return {next, next, groups_of(block.bytes, passes * units)};
  }
  void fetch() {
    for (until += each; next < until; next += LINE) prefetch_ahead(next);
  }
};

// From: how the codes are read that a tile multiplies. BY_ROW: outputs have a single scale, which only the end needs.
template <class From, bool BY_ROW = false> struct Coded {
  using Sum = Float;
  using Number = float;
  using Result = bf16;
  using Room = Block;
  template <int> using Fetcher = Ahead;
  static constexpr bool WHOLE = false;
  static constexpr int IN_REGISTERS = 8;  // sums that fit beside the parts of a unit
  static constexpr int64_t WIDENED = 0;
  static constexpr Part<Conversion> WIDEN = nullptr;
  static int64_t block(const Product &task) {
    int64_t blocks = groups_of(task.k, Block::MOST);
    return groups_of(groups_of(task.k, blocks), Block::ALIGNED) * Block::ALIGNED;
  }

  static void ready(const Product &task, int64_t panel, int64_t from, int64_t to, Block &block) {
    const Coding &coding = task.coding;
    int64_t of_span = words_of(coding.codes) * OF_WORDS, spans = spans_of(to - from);
    block.codes = (const uint8_t *)task.packed + (panel * spans_of(task.k) + from / SPAN) * of_span;
    block.packed = (const char *)block.codes, block.bytes = spans * of_span;
    if (coding.codes != From::CODES) {
      widen(coding, block.codes, spans, block.wide);
      block.codes = block.wide;
    }
    if constexpr (BY_ROW) {
      block.scales = {nullptr, nullptr};
      return;
    }
    int64_t first = from / task.unit;
    block.scales = read_scales(coding, panel, task.k, task.unit, first, groups_of(to, task.unit) - first, block.scale[0],
                               block.minimum[0]);
  }

  template <int M, int V> static void begin(const Product &, const At &, Sum (&sum)[M][V]) { clear(sum); }

  template <class, int M, int V>
  [[gnu::always_inline]] static void add(const Product &task, const At &at, int left, Sum (&sum)[M][V]) {
    const auto &block = *(const Block *)at.room;
    int64_t units = groups_of(task.k, task.unit), first = at.from / task.unit, last = groups_of(at.to, task.unit);
    int64_t stride = task.x_stride, end = spans_of(task.k) * SPAN;
    const int8_t *x = (const int8_t *)task.x + at.row * stride + at.from;
    const float *scales = block.scales.scale, *minimums = block.scales.minimum;
    From codes(task.coding, block.codes + 4 * left);
    Ahead ahead = Ahead::of<M>(block, at, left, V * W, last - first);
    int64_t of_group = groups_of(task.coding.group, task.unit), left_of_group = of_group - first % of_group;  // units
    alignas(64) float sums[M][V][W];
    for (int m = 0; m < M; m++)
      for (int v = 0; v < V; v++) store(sums[m][v], sum[m][v]);
    for (int64_t u = first; u < last; u++) {
      ahead.fetch();
      const Unit *unit = task.x_units + at.row * units + u;
      int64_t count = end - u * task.unit < task.unit ? end - u * task.unit : task.unit;
      Whole part[M][V];
      for (int m = 0; m < M; m++)
        for (int v = 0; v < V; v++) part[m][v] = set_whole(unit[m * units].start);
      terms::begin_codes(part);
      const int8_t *until = x + count;
      do {
        Quads front[V], back[V];
        codes.next(front, back);
        for (int v = 0; v < V; v++) front[v] = lessened<From::NARROW>(front[v]), back[v] = lessened<From::NARROW>(back[v]);
        terms::add_eight<From::NARROW>(x, stride, front, back, part);
        x += 8;
      } while (x < until);
      terms::end_codes(part);
      if constexpr (M * V > IN_REGISTERS) asm("" : "+m"(sums));  // otherwise GCC would keep parts in memory, and these in registers
      for (int m = 0; m < M; m++) {
        Float of_row = set(unit[m * units].scale);
        for (int v = 0; v < V; v++) {
          Float scale = BY_ROW ? of_row : mul(load(scales + left + v * W), of_row);
          store(sums[m][v], fma(to_float(part[m][v]), scale, load(sums[m][v])));
        }
      }
      if constexpr (BY_ROW) continue;
      scales += PANEL;
      if (!minimums || --left_of_group) continue;
      left_of_group = of_group;
      const float *minimum = minimums + (u - first) * PANEL + left;
      for (int m = 0; m < M; m++) {
        Float of_row = set(unit[m * units].less);
        for (int v = 0; v < V; v++) store(sums[m][v], fma(load(minimum + v * W), of_row, load(sums[m][v])));
      }
    }
    for (int m = 0; m < M; m++)
      for (int v = 0; v < V; v++) sum[m][v] = load(sums[m][v]);
  }

  template <int M, int V>
  static void end(const Product &task, const At &at, int left, const Sum (&sum)[M][V], Float (&result)[M][V]) {
    const float *scales = (const float *)task.coding.scales + at.panel * PANEL + left;
    for (int m = 0; m < M; m++)
      for (int v = 0; v < V; v++) result[m][v] = BY_ROW ? mul(sum[m][v], load(scales + v * W)) : sum[m][v];
  }
};

// Makes the units of rows `first` to before `last` of their scales and sums.
inline void units(const Product &task, int64_t first, int64_t last) {
  int64_t units = groups_of(task.k, task.unit), groups = groups_of(task.k, task.x_group), parts = groups_of(task.k, task.x_part);
  int64_t of_group = groups_of(task.coding.group, task.unit);
  int32_t less = (is_narrow(task.coding.codes) ? LESS<true> : LESS<false>) - task.coding.offset;
  for (int64_t row = first; row < last; row++) {
    float lower = 0.0f;
    for (int64_t u = 0, of_units = 0; u < units; u++) {
      int64_t part = u * task.unit / task.x_part, until = (u + 1) * task.unit / task.x_part;
      int32_t sum = 0;
      for (; part < until && part < parts; part++) sum += task.x_sum[row * parts + part];
      float scale = task.x_scale[row * groups + u * task.unit / task.x_group];
      lower = (of_units ? lower : 0.0f) - scale * (float)sum;
      if (++of_units == of_group) of_units = 0;
      task.x_units[row * units + u] = {less * sum, scale, lower};
    }
  }
}

}  // namespace VARIANT::gemm
