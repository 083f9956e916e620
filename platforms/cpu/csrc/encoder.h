// Encoder attention: the pairs (token, head) of a share over the keys of their own row, which come from the launch itself. Keys are
// packed by element and values by token, a stretch at a time, so that both products are of the same form: rows of floats times a
// panel of two vectors. The softmax is a running one, as in attention_tile.h.
#pragma once
#include <cmath>
#include <cstring>

#include "heads.h"
#include "numbers.h"

namespace VARIANT::encoder {

using namespace simd;

constexpr float NEVER = -1e30f;  // a score below all others from which others can still be subtracted
constexpr int64_t BAND = 2 * W;  // elements of a panel's row
constexpr int64_t KEYS = 256, OF_KEYS = 1 << 14;  // of a stretch, at most: fewer of large heads
static_assert(KEYS % BAND == 0 && PANEL % BAND == 0);

// c [M, BAND] = a [M, k] b [k, BAND], or added to it. a, c: with rows apart by their strides.
template <int M>
void multiply(const float *a, int64_t a_stride, const float *b, int64_t k, float *c, int64_t c_stride, bool onto) {
  Float sums[M][2];
  for (int m = 0; m < M; m++)
    for (int i = 0; i < 2; i++) sums[m][i] = onto ? load(c + m * c_stride + i * W) : zero();
  for (int64_t i = 0; i < k; i++, b += BAND) {
    Float left = load(b), right = load(b + W);
    for (int m = 0; m < M; m++) {
      Float x = set(a[m * a_stride + i]);
      sums[m][0] = fma(x, left, sums[m][0]);
      sums[m][1] = fma(x, right, sums[m][1]);
    }
  }
  for (int m = 0; m < M; m++)
    for (int i = 0; i < 2; i++) store(c + m * c_stride + i * W, sums[m][i]);
}

using Multiply = void (*)(const float *, int64_t, const float *, int64_t, float *, int64_t, bool);
struct Multiplies {
  Multiply of[ROWS + 1] = {};
  template <int M> constexpr void fill() {
    of[M] = multiply<M>;
    if constexpr (M > 1) fill<M - 1>();
  }
  constexpr Multiplies() { fill<ROWS>(); }
};
constexpr Multiplies MULTIPLIES;

// A share under way. Number: of x and out.
template <class Number> struct Running {
  const Encoding &task;
  const Layer &layer;
  const Share &share;
  int64_t dim, wide, group, length;  // wide: dim in whole panels
  int64_t stretch;                   // keys, in whole panels
  const Number *x;                   // of the row's first token
  alignas(64) float q[OF_PAIRS], mixed[OF_PAIRS];          // [pairs][dim] and [pairs][wide]
  alignas(64) float keys[OF_KEYS], values[OF_KEYS];        // [panels][dim][BAND] and [panels][stretch][BAND]
  alignas(64) float scores[ROWS][KEYS];
  float peak[PAIRS], total[PAIRS];

  Running(const Encoding &task, const Share &share)
      : task(task), layer(*task.layer), share(share), dim(layer.cache.dim), wide((dim + BAND - 1) / BAND * BAND),
        group(layer.heads / layer.cache.kv_heads), length(task.launch->length[share.row]),
        x((const Number *)task.x + task.launch->start[share.row] * task.x_stride) {
    int64_t fit = OF_KEYS / widened_to_panels(dim) / BAND * BAND;
    stretch = fit < KEYS ? fit : KEYS;
  }

  int64_t token_of(int64_t pair) const { return (share.first + pair) / group; }
  int64_t head_of(int64_t pair) const { return share.kv_head * group + (share.first + pair) % group; }

  // Converts a head of a token to floats, normalizes and rotates it.
  void ready(int64_t token, int64_t head, const bf16 *weight, float *to) const {
    const float *cosines = nullptr;
    if (layer.cos_sin) cosines = layer.cos_sin + task.launch->positions[task.launch->start[share.row] + token] * layer.turned;
    heads::Token here{layer, cosines, cosines ? cosines + layer.turned / 2 : nullptr};
    here.ready(x + token * task.x_stride + head * dim, (const Number *)weight, to);
  }

  void begin() {
    Float scale = set(layer.soft_cap ? 1.0f : layer.scale);
    std::memset(mixed, 0, share.count * wide * sizeof(float));
    for (int64_t p = 0; p < share.count; p++) {
      float *to = q + p * dim;
      ready(token_of(p), head_of(p), layer.q_weight, to);
      for (int64_t i = 0; i < dim; i += W) store(to + i, mul(load(to + i), scale));
      peak[p] = NEVER;
      total[p] = 0.0f;
    }
  }

  // Packs the keys and values of `count` tokens.
  void pack(int64_t from, int64_t count) {
    alignas(64) float head[WIDEST];
    if (count % BAND) std::memset(keys + count / BAND * BAND * dim, 0, BAND * dim * sizeof(float));
    for (int64_t i = 0; i < count; i++) {
      ready(from + i, layer.heads + share.kv_head, layer.k_weight, head);
      float *to = keys + i / BAND * BAND * dim + i % BAND;
      for (int64_t d = 0; d < dim; d++) to[d * BAND] = head[d];
      const Number *v = x + (from + i) * task.x_stride + (layer.heads + layer.cache.kv_heads + share.kv_head) * dim;
      for (int64_t d = 0; d < wide; d += W)
        store(values + (d / BAND * stretch + i) * BAND + d % BAND, d < dim ? heads::widened(v + d) : zero());
    }
  }

  void cap(float *row, int64_t padded) const {  // tanh x = 1 - 2 / (exp 2x + 1)
    Float factor = set(2 * layer.scale / layer.soft_cap), most = set(layer.soft_cap);
    for (int64_t i = 0; i < padded; i += W) {
      Float twice = exp(mul(load(row + i), factor));
      store(row + i, mul(most, sub(set(1.0f), div(set(2.0f), add(twice, set(1.0f))))));
    }
  }

  void add_bias(int64_t pair, float *row, int64_t from, int64_t padded) const {
    int64_t entries = 2 * task.reach - 1, shift = from - token_of(pair) + task.reach - 1;
    const float *bias = task.bias + head_of(pair) * entries;
    for (int64_t i = 0; i < padded; i += W) {
      int64_t first = shift + i;
      if (first >= 0 && first + W <= entries) {
        store(row + i, simd::add(load(row + i), load(bias + first)));
        continue;
      }
      for (int64_t j = 0; j < W; j++) {
        int64_t entry = first + j;
        row[i + j] += bias[entry < 0 ? 0 : entry < entries ? entry : entries - 1];
      }
    }
  }

  // From scores to weights, and what was mixed before to the new scale.
  void soften(int64_t pair, float *row, int64_t from, int64_t count, int64_t padded) {
    if (layer.soft_cap) cap(row, padded);
    if (task.bias) add_bias(pair, row, from, padded);
    int64_t first = 0, last = count;
    if (layer.window) {
      int64_t low = token_of(pair) - layer.window + 1 - from, high = token_of(pair) + layer.window - from;
      first = low > 0 ? low < padded ? low : padded : 0;
      last = high < count ? high > 0 ? high : 0 : count;
    }
    for (int64_t i = 0; i < first; i++) row[i] = NEVER;
    for (int64_t i = last; i < padded; i++) row[i] = NEVER;
    Float most = set(peak[pair]);
    for (int64_t i = 0; i < padded; i += W) most = max(most, load(row + i));
    float before = peak[pair], now = largest(most);
    peak[pair] = now;
    if (now == NEVER) return std::memset(row, 0, padded * sizeof(float)), void();  // no visible key so far
    Float shift = set(now), sums = zero();
    for (int64_t i = 0; i < padded; i += W) {
      Float weight = exp(sub(load(row + i), shift));
      sums = add(sums, weight);
      store(row + i, weight);
    }
    if (before == now || before == NEVER) {
      total[pair] += sum(sums);
      return;
    }
    Float factor = exp(set(before - now));
    total[pair] = total[pair] * largest(factor) + sum(sums);
    float *own = mixed + pair * wide;
    for (int64_t i = 0; i < wide; i += W) store(own + i, mul(load(own + i), factor));
  }

  // Some pairs over a stretch of packed keys.
  void step(int64_t pair, int64_t pairs, int64_t from, int64_t count) {
    int64_t padded = (count + BAND - 1) / BAND * BAND;
    Multiply multiply = MULTIPLIES.of[pairs];
    for (int64_t i = 0; i < padded; i += BAND) multiply(q + pair * dim, dim, keys + i * dim, dim, scores[0] + i, KEYS, false);
    for (int64_t m = 0; m < pairs; m++) soften(pair + m, scores[m], from, count, padded);
    for (int64_t i = 0; i < wide; i += BAND)
      multiply(scores[0], KEYS, values + i * stretch, count, mixed + pair * wide + i, wide, true);
  }

  void run() {
    begin();
    int64_t first = 0, last = length, count = share.count, tiles = (count + ROWS - 1) / ROWS, window = layer.window;
    if (window && token_of(0) - window + 1 > 0) first = token_of(0) - window + 1;
    if (window && token_of(count - 1) + window < last) last = token_of(count - 1) + window;
    for (int64_t from = first; from < last; from += stretch) {
      int64_t here = last - from < stretch ? last - from : stretch;
      pack(from, here);
      for (int64_t t = 0; t < tiles; t++) {
        int64_t pair = count * t / tiles, end = count * (t + 1) / tiles;
        bool seen = !window || (token_of(end - 1) + window > from && token_of(pair) - window < from + here);
        if (seen) step(pair, end - pair, from, here);
      }
    }
    for (int64_t p = 0; p < count; p++) {
      Float factor = set(1.0f / total[p]);
      int64_t token = task.launch->start[share.row] + token_of(p);
      Number *to = (Number *)task.out + (token * layer.heads + head_of(p)) * dim;
      for (int64_t i = 0; i < dim; i += W) numbers::put(to + i, mul(load(mixed + p * wide + i), factor));
    }
  }
};

template <class Number> void attention(const Encoding &task, int64_t first, int64_t last) {
  for (int64_t i = first; i < last; i++) Running<Number>(task, task.shares[i]).run();
}

}  // namespace VARIANT::encoder
