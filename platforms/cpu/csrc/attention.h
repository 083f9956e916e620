// Attention over blocks: a tile of (token, head) pairs that share a head of keys goes over the keys in stretches, with the
// softmax of what it has seen so far (online softmax, arXiv:1805.02867; tiles as in FlashAttention, arXiv:2205.14135).
// Decode and prefill are the same: of a row that decodes, the pairs are the heads of its one token.
#pragma once
#include "gemm.h"
#include "kernels.h"

namespace VARIANT::attention {

using namespace simd;

constexpr int64_t STRETCH = 128;  // keys
constexpr int64_t WIDE = 2 * TOKENS;
constexpr float NEVER = -1e30f;  // a score below all others that can still be subtracted

template <int M> struct Tile {
  const Attention &task;
  const Share &share;
  const Layer &layer;
  const Cache &cache;
  const int32_t *table;
  int64_t group;                 // heads of queries to a head of keys
  bool fetches;                  // no other tile has brought these keys and values near
  alignas(64) bf16 q[M][WIDEST];
  alignas(64) float scores[M][STRETCH];
  alignas(64) bf16 weights[M][STRETCH];
  alignas(64) float mixed[M][WIDEST];
  float peak[M], total[M];
  int64_t begin[M], end[M];      // keys that a pair sees

  Tile(const Attention &task, const Share &share)
      : task(task), share(share), layer(*task.layer), cache(layer.cache),
        table(task.launch->tables + share.row * task.launch->table_stride), group(layer.heads / cache.kv_heads),
        fetches(task.launch->length[share.row] * group == share.count) {
    int64_t before = task.launch->kv_len[share.row] - task.launch->length[share.row];
    for (int m = 0; m < M; m++) {
      int64_t token = (share.first + m) / group;
      std::memcpy(q[m], task.q + place(m), cache.dim * sizeof(bf16));
      end[m] = before + token + 1;
      begin[m] = layer.window && end[m] > layer.window ? end[m] - layer.window : 0;
      peak[m] = NEVER;
      total[m] = 0.0f;
      for (int64_t i = 0; i < cache.dim; i += W) store(mixed[m] + i, zero());
    }
  }

  // Of the m-th pair's elements in q and out.
  int64_t place(int m) const {
    int64_t token = task.launch->start[share.row] + (share.first + m) / group;
    return (token * layer.heads + share.kv_head * group + (share.first + m) % group) * cache.dim;
  }

  // Keys and values of the 16 tokens from a multiple of 16 on.
  const bf16 *keys(int64_t from) const {
    const bf16 *block = cache.keys + table[from / cache.block_size] * cache.key_stride;
    return block + (share.kv_head * cache.block_size + from % cache.block_size) * cache.dim;
  }
  const bf16 *values(int64_t from) const {
    const bf16 *block = cache.values + table[from / cache.block_size] * cache.value_stride;
    return block + (share.kv_head * cache.block_size + from % cache.block_size) * cache.dim;
  }

  // The lines of 16 tokens, which are needed half a stretch later.
  void fetch(const bf16 *tokens) const {
    for (int64_t i = 0; i < TOKENS * cache.dim; i += 64 / sizeof(bf16)) prefetch(tokens + i);
  }

  void score(int64_t from, int64_t count) {
    for (int64_t at = 0; at < count; at += WIDE) {
      if (fetches) {
        fetch(values(from + at));
        if (at + TOKENS < count) fetch(values(from + at + TOKENS));
      }
      const bf16 *near = keys(from + at), *far = at + TOKENS < count ? keys(from + at + TOKENS) : near;
      for (int left = 0; left < TOKENS; left += W) {
        Float sum[M][2];
        gemm::clear(sum);
        gemm::accumulate(q[0], WIDEST, near + 2 * left, far + 2 * left, WIDE, cache.dim, sum);
        for (int m = 0; m < M; m++) {
          store(scores[m] + at + left, scaled(sum[m][0]));
          store(scores[m] + at + TOKENS + left, scaled(sum[m][1]));
        }
      }
    }
  }

  Float scaled(Float x) const {
    if (!layer.soft_cap) return mul(x, set(layer.scale));
    Float twice = exp(mul(x, set(2 * layer.scale / layer.soft_cap)));  // tanh x = 1 - 2 / (exp 2x + 1)
    return mul(set(layer.soft_cap), sub(set(1.0f), div(set(2.0f), add(twice, set(1.0f)))));
  }

  // Scores of keys that a pair does not see become nothing. padded: a multiple of what a vector holds.
  void hide(int m, int64_t from, int64_t count, int64_t padded) {
    int64_t first = begin[m] - from, last = end[m] - from;
    if (last > count) last = count;
    for (int64_t i = 0; i < first && i < padded; i++) scores[m][i] = NEVER;
    for (int64_t i = last < 0 ? 0 : last; i < padded; i++) scores[m][i] = NEVER;
  }

  void soften(int m, int64_t padded) {
    Float most = set(peak[m]);
    for (int64_t i = 0; i < padded; i += W) most = max(most, load(scores[m] + i));
    float before = peak[m], now = largest(most);
    peak[m] = now;
    Float shift = set(now), sums = zero();
    if (now == NEVER) {  // it has seen nothing yet
      for (int64_t i = 0; i < padded; i += W) store_bf16(weights[m] + i, zero());
      return;
    }
    for (int64_t i = 0; i < padded; i += W) {
      Float weight = exp(sub(load(scores[m] + i), shift));
      sums = add(sums, weight);
      store_bf16(weights[m] + i, weight);
    }
    if (before == now) {
      total[m] += sum(sums);
      return;
    }
    Float factor = exp(set(before - now));
    total[m] = total[m] * largest(factor) + sum(sums);
    for (int64_t i = 0; i < cache.dim; i += W) store(mixed[m] + i, mul(mixed_at(m, i), factor));
  }
  Float mixed_at(int m, int64_t i) const { return load(mixed[m] + i); }

  void mix(int64_t from, int64_t count) {
    int64_t dim = cache.dim;
    for (int64_t at = 0; at < dim; at += WIDE) {
      int64_t far = at + TOKENS < dim ? TOKENS : 0;  // the last 16 elements alone: once more, and not kept
      for (int left = 0; left < TOKENS; left += W) {
        Float sum[M][2];
        for (int m = 0; m < M; m++) {
          sum[m][0] = load(mixed[m] + at + left);
          sum[m][1] = load(mixed[m] + at + far + left);
        }
        for (int64_t t = 0; t < count; t += TOKENS) {
          int64_t next = from + STRETCH + t;
          if (fetches && at + left == 0 && next < share.to) fetch(keys(next));
          const bf16 *near = values(from + t) + 2 * (at + left);
          gemm::accumulate(weights[0] + t, STRETCH, near, near + 2 * far, 2 * dim, count - t < TOKENS ? count - t : TOKENS, sum);
        }
        for (int m = 0; m < M; m++) {
          if (far) store(mixed[m] + at + far + left, sum[m][1]);
          store(mixed[m] + at + left, sum[m][0]);
        }
      }
    }
  }

  void finish() {
    int64_t dim = cache.dim;
    for (int m = 0; m < M; m++) {
      if (share.part < 0) {
        Float factor = set(total[m] > 0.0f ? 1.0f / total[m] : 0.0f);
        for (int64_t i = 0; i < dim; i += W) store_bf16(task.out + place(m) + i, mul(mixed_at(m, i), factor));
        continue;
      }
      float *to = task.partial + (share.part * TILE + m) * (dim + 2);
      std::memcpy(to, mixed[m], dim * sizeof(float));
      to[dim] = peak[m];
      to[dim + 1] = total[m];
    }
  }
};

template <int M> void of_share(const Attention &task, const Share &share) {
  Tile<M> tile(task, share);
  for (int64_t from = share.from; from < share.to; from += STRETCH) {
    int64_t count = share.to - from < STRETCH ? share.to - from : STRETCH;
    int64_t padded = (count + TOKENS - 1) / TOKENS * TOKENS;
    tile.score(from, count);
    for (int m = 0; m < M; m++) {
      if (tile.begin[m] > from || tile.end[m] < from + padded) tile.hide(m, from, count, padded);
      tile.soften(m, padded);
    }
    tile.mix(from, count);
  }
  tile.finish();
}

using OfShare = void (*)(const Attention &, const Share &);
struct Shares {
  OfShare at[ROWS + 1] = {};
  template <int M> constexpr void fill() {
    at[M] = of_share<M>;
    if constexpr (M > 1) fill<M - 1>();
  }
  constexpr Shares() { fill<ROWS>(); }
};
constexpr Shares SHARES;

inline void attention(const Attention &task, int64_t first, int64_t last) {
  for (int64_t i = first; i < last; i++) SHARES.at[task.shares[i].count](task, task.shares[i]);
}

}  // namespace VARIANT::attention
