// A tile of attention: (token, head) pairs that share a key head process the keys in stretches, keeping a running softmax
// (online softmax, arXiv:1805.02867; tiles as in FlashAttention, arXiv:2205.14135).
#pragma once
#include "kept.h"
#include "single.h"

namespace VARIANT::attention {

using namespace simd;

constexpr float NEVER = -1e30f;  // a score below all others from which others can still be subtracted

// The offset of a pair's elements in q and out: the number-th pair of a row's tokens and the heads that share a key head.
inline int64_t place_of(const Attention &task, const Share &share, int64_t number) {
  const Layer &layer = *task.layer;
  int64_t group = layer.heads / layer.cache.kv_heads, token = task.launch->start[share.row] + number / group;
  return (token * layer.heads + share.kv_head * group + number % group) * layer.cache.dim;
}

// The head of that pair.
inline int64_t head_of(const Attention &task, const Share &share, int64_t number) {
  int64_t group = task.layer->heads / task.layer->cache.kv_heads;
  return share.kv_head * group + number % group;
}

// Adds the sink of a pair's head, if it has one, to the total of weights. peak: the largest score so far, from which weights
// are; returns the factor by which the sum of weighted values changes.
inline float with_sink(const Attention &task, const Share &share, int64_t number, float peak, float &total) {
  if (!task.layer->sinks) return 1.0f;
  float sink = single::widened(task.layer->sinks[head_of(task, share, number)]), most = peak > sink ? peak : sink;
  float factor = largest(exp(set(peak - most)));
  total = total * factor + largest(exp(set(sink - most)));
  return factor;
}

// Stores a pair's result. mixed: the sum of weighted values; total: of weights; scale: a factor of mixed. Adding 0 leaves no -0,
// which would depend on whether keys that the pair does not attend to were processed too.
inline void put(const float *mixed, int64_t dim, float scale, float total, bf16 *out) {
  Float factor = set(total > 0.0f ? scale / total : 0.0f);
  for (int64_t i = 0; i < dim; i += W) store_bf16(out + i, add(mul(load(mixed + i), factor), zero()));
}

template <template <int> class Kept, int M> struct Tile {
  const Attention &task;
  const Share &share;
  const Layer &layer;
  const Cache &cache;
  Head head;
  int64_t group;                 // query heads per key head
  Kept<M> kept;
  alignas(64) float scores[M][STRETCH];
  alignas(64) float mixed[M][WIDEST];
  float peak[M], total[M];
  int64_t begin[M], end[M];      // the keys that a pair attends to

  Tile(const Attention &task, const Share &share)
      : task(task), share(share), layer(*task.layer), cache(layer.cache),
        head{cache, task.launch->tables + share.row * task.launch->table_stride, share.kv_head},
        group(layer.heads / cache.kv_heads) {
    kept.in_order = layer.in_order;
    int64_t before = task.launch->kv_len[share.row] - task.launch->length[share.row];
    for (int m = 0; m < M; m++) {
      int64_t token = (share.first + m) / group;
      kept.ask(m, task.q + place(m), cache.dim);
      end[m] = before + token + 1;
      begin[m] = first_key(layer, end[m] - 1);
      if (task.launch->ahead) end[m] += task.launch->ahead[task.launch->start[share.row] + token];
      peak[m] = NEVER;
      total[m] = 0.0f;
      for (int64_t i = 0; i < cache.dim; i += W) store(mixed[m] + i, zero());
    }
  }

  int64_t place(int m) const { return place_of(task, share, share.first + m); }

  void score(int64_t count) {
    for (int64_t at = 0; at < count; at += WIDE) {
      int64_t near = at / TOKENS, far = at + TOKENS < count ? near + 1 : near;
      for (int left = 0; left < TOKENS; left += W) {
        Float sum[M][2];
        kept.products(head, near, far, left, sum);
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

  // Adds the linear bias of a pair's head to its scores.
  void tilt(int m, int64_t from, int64_t padded) {
    float slope = layer.slopes[head_of(task, share, share.first + m)];
    int64_t before = from - (end[m] - 1);
    for (int64_t i = 0; i < padded; i++) scores[m][i] += slope * (float)(before + i);
  }

  // Adds the biases of a pair's head to its scores, by distance. Keys that come after the query are masked.
  void lean(int m, int64_t from, int64_t padded) {
    const float *bias = layer.relative_bias + head_of(task, share, share.first + m) * layer.reach;
    int64_t first = from - (end[m] - 1) + layer.reach - 1, far = -first, last = layer.reach - first;
    far = far < 0 ? 0 : far < padded ? far : padded;
    last = last < padded ? last : padded;
    for (int64_t i = 0; i < far; i++) scores[m][i] += bias[0];
    for (int64_t i = far; i < last; i++) scores[m][i] += bias[first + i];
  }

  // Masks the scores of keys that a pair does not attend to. padded: count rounded up to whole vectors.
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
    if (now == NEVER) {  // no visible key so far
      for (int64_t i = 0; i < padded; i += W) kept.weigh(m, i, zero(), scores[m]);
      return kept.weighed(m, padded, scores[m]);
    }
    for (int64_t i = 0; i < padded; i += W) {
      Float weight = exp(sub(load(scores[m] + i), shift));
      sums = add(sums, weight);
      kept.weigh(m, i, weight, scores[m]);
    }
    kept.weighed(m, padded, scores[m]);
    if (before == now) {
      total[m] += sum(sums);
      return;
    }
    Float factor = exp(set(before - now));
    total[m] = total[m] * largest(factor) + sum(sums);
    for (int64_t i = 0; i < cache.dim; i += W) store(mixed[m] + i, mul(mixed_at(m, i), factor));
  }
  Float mixed_at(int m, int64_t i) const { return load(mixed[m] + i); }

  void mix(int64_t count, const Coming &coming) {
    int64_t dim = cache.dim;
    for (int64_t at = 0; at < dim; at += WIDE) {
      int64_t far = at + TOKENS < dim ? TOKENS : 0;  // a single last group of 16 is computed twice and kept once
      for (int left = 0; left < TOKENS; left += W) {
        Float sum[M][2];
        for (int m = 0; m < M; m++) {
          sum[m][0] = load(mixed[m] + at + left);
          sum[m][1] = load(mixed[m] + at + far + left);
        }
        kept.mix(head, count, at + left, far, coming, sum);
        for (int m = 0; m < M; m++) {
          if (far) store(mixed[m] + at + far + left, sum[m][1]);
          store(mixed[m] + at + left, sum[m][0]);
        }
      }
    }
  }

  // Processes the keys of a stretch, while prefetching those that come next.
  void step(int64_t from, int64_t count, const Coming &coming) {
    int64_t padded = (count + TOKENS - 1) / TOKENS * TOKENS;
    head.find(from, count);
    kept.begin(head, count);
    score(count);
    for (int m = 0; m < M; m++) {
      if (layer.slopes) tilt(m, from, padded);
      if (layer.relative_bias) lean(m, from, padded);
      if (begin[m] > from || end[m] < from + padded) hide(m, from, count, padded);
      soften(m, padded);
    }
    mix(count, coming);
  }

  void finish() {
    int64_t dim = cache.dim;
    for (int m = 0; m < M; m++) {
      if (share.part < 0) {
        float factor = with_sink(task, share, share.first + m, peak[m], total[m]);
        put(mixed[m], dim, factor, total[m], task.out + place(m));
        continue;
      }
      float *to = task.partial + (share.part * TILE + m) * (dim + 2);
      std::memcpy(to, mixed[m], dim * sizeof(float));
      to[dim] = peak[m];
      to[dim + 1] = total[m];
    }
  }
};

}  // namespace VARIANT::attention
