// Attention over blocks: runs the shares of a launch, each a tile or a part of one. Shares over the same keys process them one
// stretch at a time in turn. Decode and prefill are the same: for a decoding row, the pairs are the heads of its one token.
#pragma once
#include <cmath>
#include <new>

#include "attention_tile.h"

namespace VARIANT::attention {

using namespace simd;

// A running tile, whatever its number of pairs.
struct Begun {
  void (*step)(void *tile, int64_t from, int64_t count, const Coming &coming);
  void (*finish)(void *tile);
};

template <template <int> class Kept, int M> Begun begin(const Attention &task, const Share &share, void *memory) {
  using Whole = Tile<Kept, M>;
  new (memory) Whole(task, share);
  return {[](void *tile, int64_t from, int64_t count, const Coming &coming) { ((Whole *)tile)->step(from, count, coming); },
          [](void *tile) { ((Whole *)tile)->finish(); }};
}

using Begin = Begun (*)(const Attention &, const Share &, void *memory);
template <template <int> class Kept> struct Begins {
  Begin of[ROWS + 1] = {};
  template <int M> constexpr void fill() {
    of[M] = begin<Kept, M>;
    if constexpr (M > 1) fill<M - 1>();
  }
  constexpr Begins() { fill<ROWS>(); }
};
template <template <int> class Kept> constexpr Begins<Kept> BEGINS;

// The number of keys per stretch: the fewest stretches possible, all of about the same length.
inline int64_t stretch_of(int64_t keys) {
  int64_t sixteens = (keys + TOKENS - 1) / TOKENS, most = STRETCH / TOKENS;
  int64_t stretches = (sixteens + most - 1) / most;
  return (sixteens + stretches - 1) / stretches * TOKENS;
}

// The keys of a share from key `from` on.
template <class Number> Coming coming_of(const Attention &task, const Share &share, int64_t from) {
  Head head{task.layer->cache, task.launch->tables + share.row * task.launch->table_stride, share.kv_head};
  Coming coming;
  coming.parts = (task.layer->cache.dim + WIDE - 1) / WIDE;
  for (auto &keys : coming.keys) {
    keys = head.keys_from<Number>(from);
    if (from + TOKENS < share.to) from += TOKENS;
  }
  return coming;
}

// Runs shares over keys of the same head of a row, all of them stretch by stretch: keys and values that one share has read are
// then in the cache for the others. next: the share that follows.
constexpr int64_t TILES_AT_ONCE = 8;
template <template <int> class Kept>
void of_shares(const Attention &task, const Share *shares, int64_t number, const Share &next) {
  alignas(64) char memory[TILES_AT_ONCE][sizeof(Tile<Kept, ROWS>)];
  Begun tiles[TILES_AT_ONCE];
  const Share *longest = shares;
  int64_t first = shares->from;
  for (int64_t i = 0; i < number; i++) {
    tiles[i] = BEGINS<Kept>.of[shares[i].count](task, shares[i], memory[i]);
    if (shares[i].to > longest->to) longest = shares + i;
    if (shares[i].from < first) first = shares[i].from;
  }
  using Number = typename Kept<1>::Number;
  bool in_order = task.layer->in_order;  // then stretches end at multiples of their length, wherever a share begins
  int64_t stretch = in_order ? STRETCH : stretch_of(longest->to - first);
  for (int64_t from = first, to; from < longest->to; from = to) {
    to = in_order ? (from / STRETCH + 1) * STRETCH : from + stretch;
    if (to > longest->to) to = longest->to;
    bool last = to == longest->to;
    Coming coming = coming_of<Number>(task, last ? next : *longest, last ? next.from : to);
    for (int64_t i = 0; i < number; i++) {
      int64_t start = from > shares[i].from ? from : shares[i].from, end = to < shares[i].to ? to : shares[i].to;
      if (start < end) tiles[i].step(memory[i], start, end - start, coming);
    }
  }
  for (int64_t i = 0; i < number; i++) tiles[i].finish(memory[i]);
}

// Whether two shares are whole tiles over (nearly) the same keys.
inline bool together(const Share &a, const Share &b) {
  return a.row == b.row && a.kv_head == b.kv_head && a.part < 0 && b.part < 0;
}

inline void attention(const Attention &task, int64_t first, int64_t last) {
  auto of = task.layer->cache.key_scales ? of_shares<Int8Kept> : of_shares<Bf16Kept>;
  while (first < last) {
    const Share *shares = task.shares + first;
    int64_t number = 1, left = last - first;
    while (number < TILES_AT_ONCE && number < left && together(shares[0], shares[number])) number++;
    of(task, shares, number, shares[number < left ? number : 0]);
    first += number;
  }
}

// Combines the parts of tiles into their results. Item: a share; the first of several has their number.
inline void join(const Attention &task, int64_t first, int64_t last) {
  int64_t dim = task.layer->cache.dim, width = dim + 2;
  alignas(64) float mixed[WIDEST];
  for (int64_t i = first; i < last; i++) {
    const Share &share = task.shares[i];
    for (int64_t m = 0; share.parts > 1 && m < share.count; m++) {
      const float *parts = task.partial + (share.part * TILE + m) * width;
      float most = parts[dim], total = 0.0f;
      for (int64_t p = 1; p < share.parts; p++) most = std::fmax(most, parts[p * TILE * width + dim]);
      for (int64_t d = 0; d < dim; d += W) store(mixed + d, zero());
      for (int64_t p = 0; p < share.parts; p++) {
        const float *part = parts + p * TILE * width;
        Float weight = exp(set(part[dim] - most));
        total += part[dim + 1] * largest(weight);
        for (int64_t d = 0; d < dim; d += W) store(mixed + d, fma(load(part + d), weight, load(mixed + d)));
      }
      float factor = with_sink(task, share, share.first + m, most, total);
      put(mixed, dim, factor, total, task.out + place_of(task, share, share.first + m));
    }
  }
}

}  // namespace VARIANT::attention
