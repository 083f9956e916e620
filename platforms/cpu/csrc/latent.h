// Latent attention (MLA, DeepSeek-V2, arXiv:2405.04434), computed in floats. Two products are all it takes: of rows with rows, and of
// rows with weights. Latents are widened once for all heads of a share; the softmax is a running one, as in attention_tile.h.
#pragma once
#include <cmath>
#include <cstring>

#include "entries.h"
#include "heads.h"
#include "numbers.h"

namespace VARIANT::latent {

using namespace simd;

constexpr float NEVER = -1e30f;  // a score below all others from which others can still be subtracted
constexpr int ABREAST = 3;       // rows of the second factor in a product of rows with rows
constexpr int DOTS = ROWS * 2 / 3;  // and of the first, so that the sums fit in registers
static_assert(LATENT_KEYS % ABREAST == 0 && LATENT_KEYS % W == 0 && PANEL % (2 * W) == 0);

inline bf16 narrowed(float x, bf16) { return single::rounded(x); }
inline float narrowed(float x, float) { return x; }

// Widens `count` numbers, times `factor`, with zeros up to a multiple of W.
template <class Number> void widen(const Number *from, int64_t count, float *to, float factor = 1.0f) {
  int64_t i = 0;
  for (; i + W <= count; i += W) store(to + i, mul(numbers::take(from + i), set(factor)));
  if (i < count) store(to + i, mul(numbers::take_some(from + i, count - i), set(factor)));
}

// The same with zeros up to `width`, a multiple of W.
template <class Number> void widen_to(const Number *from, int64_t count, int64_t width, float *to, float factor = 1.0f) {
  widen(from, count, to, factor);
  for (int64_t i = (count + W - 1) / W * W; i < width; i += W) store(to + i, zero());
}

// c [M, ABREAST] = a [M, k] b [ABREAST, k]^T. k: a multiple of W.
template <int M>
void dots(const float *a, int64_t a_stride, const float *b, int64_t b_stride, int64_t k, float *c, int64_t c_stride) {
  Float sums[M][ABREAST];
  for (auto &row : sums)
    for (auto &one : row) one = zero();
  for (int64_t i = 0; i < k; i += W) {
    Float right[ABREAST];
    for (int n = 0; n < ABREAST; n++) right[n] = load(b + n * b_stride + i);
    for (int m = 0; m < M; m++) {
      Float left = load(a + m * a_stride + i);
      for (int n = 0; n < ABREAST; n++) sums[m][n] = fma(left, right[n], sums[m][n]);
    }
  }
  for (int m = 0; m < M; m++)
    for (int n = 0; n < ABREAST; n++) c[m * c_stride + n] = sum(sums[m][n]);
}

// c [M, 2 W] += a [M, k] b [k, 2 W].
template <int M, class Number>
void mix(const float *a, int64_t a_stride, const Number *b, int64_t b_stride, int64_t k, float *c, int64_t c_stride) {
  Float sums[M][2];
  for (int m = 0; m < M; m++)
    for (int v = 0; v < 2; v++) sums[m][v] = load(c + m * c_stride + v * W);
  for (int64_t i = 0; i < k; i++, b += b_stride) {
    Float left = numbers::take(b), right = numbers::take(b + W);
    for (int m = 0; m < M; m++) {
      Float x = set(a[m * a_stride + i]);
      sums[m][0] = fma(x, left, sums[m][0]);
      sums[m][1] = fma(x, right, sums[m][1]);
    }
  }
  for (int m = 0; m < M; m++)
    for (int v = 0; v < 2; v++) store(c + m * c_stride + v * W, sums[m][v]);
}

struct Dots {
  decltype(&dots<1>) of[DOTS + 1] = {};
  template <int M> constexpr void fill() {
    of[M] = dots<M>;
    if constexpr (M > 1) fill<M - 1>();
  }
  constexpr Dots() { fill<DOTS>(); }
};
constexpr Dots DOTS_OF;

template <class Number> struct Mixes {
  decltype(&mix<1, Number>) of[ROWS + 1] = {};
  template <int M> constexpr void fill() {
    of[M] = mix<M, Number>;
    if constexpr (M > 1) fill<M - 1>();
  }
  constexpr Mixes() { fill<ROWS>(); }
};
template <class Number> constexpr Mixes<Number> MIXES_OF;

// Calls take(first, count) with tiles of up to `most` of `number` rows, all of about the same size.
template <class Take> void in_tiles(int64_t number, int64_t most, Take &&take) {
  int64_t tiles = (number + most - 1) / most;
  for (int64_t t = 0; t < tiles; t++) take(number * t / tiles, number * (t + 1) / tiles - number * t / tiles);
}

// ---- the input -------------------------------------------------------------------------------------------------------

template <class Number> void norm(const LatentLayer &layer, float *latent) {
  Float squares = zero();
  auto *weight = (const Number *)layer.norm;
  int64_t whole = layer.rank / W * W;
  float rest = 0.0f;
  for (int64_t i = 0; i < whole; i += W) squares = fma(load(latent + i), load(latent + i), squares);
  for (int64_t i = whole; i < layer.rank; i++) rest += latent[i] * latent[i];
  float factor = 1.0f / std::sqrt((sum(squares) + rest) / (float)layer.rank + layer.eps);
  for (int64_t i = 0; i < whole; i += W)
    store(latent + i, mul(mul(load(latent + i), set(factor)), add(numbers::take(weight + i), set(layer.offset))));
  for (int64_t i = whole; i < layer.rank; i++) latent[i] *= factor * (entries::widened(weight[i]) + layer.offset);
}

template <class Number> void narrow(const float *from, int64_t count, Number *to) {
  int64_t i = 0;
  for (; i + W <= count; i += W) numbers::put(to + i, load(from + i));
  if (i < count) numbers::put_some(to + i, load(from + i), count - i);
}

template <class Number> void input(const LatentInput &task, int64_t first, int64_t last) {
  const LatentLayer &layer = *task.layer;
  alignas(64) float wide[WIDEST_LATENT + PANEL];
  for (int64_t t = first; t < last; t++) {
    const float *cosines = layer.cos_sin ? layer.cos_sin + task.launch->positions[t] * layer.turned : nullptr;
    const float *sines = cosines + layer.turned / 2;
    for (int64_t h = 0; task.q && cosines && h < layer.heads; h++) {
      Number *turning = (Number *)task.q + t * task.q_stride + h * (layer.nope + layer.rope) + layer.nope;
      widen(turning, layer.turned, wide);
      heads::turn(wide, cosines, sines, layer.turned / 2, layer.neighbours);
      narrow(wide, layer.turned, turning);
    }
    int64_t slot = task.launch->slots[t], block = slot / layer.block_size, at = slot % layer.block_size;
    widen((const Number *)task.latent + t * task.latent_stride, layer.rank + layer.rope, wide);
    if (layer.norm) norm<Number>(layer, wide);
    if (cosines) heads::turn(wide + layer.rank, cosines, sines, layer.turned / 2, layer.neighbours);
    narrow(wide, layer.rank + layer.rope,
           (Number *)layer.latents + block * layer.block_stride + at * (layer.rank + layer.rope));
  }
}

// ---- attention -------------------------------------------------------------------------------------------------------

// Pairs that process keys in stretches. Queries, keys and values are rows of floats.
struct Running {
  int64_t pairs;
  const float *q;
  int64_t wide;     // elements of a query and of a key, in whole panels, with zeros behind
  float *mixed;     // sums of weighted values
  int64_t deep;     // elements of a value, in whole panels
  int64_t stride;   // from sum to sum
  alignas(64) float scores[LATENT_PAIRS][LATENT_KEYS];
  float peak[LATENT_PAIRS], total[LATENT_PAIRS];

  void begin() {
    for (int64_t p = 0; p < pairs; p++) {
      peak[p] = NEVER;
      total[p] = 0.0f;
      std::memset(mixed + p * stride, 0, deep * sizeof(float));
    }
  }

  // From scores to weights, and what was mixed before to the new scale.
  void soften(int64_t p, int64_t padded) {
    float *row = scores[p];
    Float most = set(peak[p]);
    for (int64_t i = 0; i < padded; i += W) most = max(most, load(row + i));
    float before = peak[p], now = largest(most);
    peak[p] = now;
    if (now == NEVER) return std::memset(row, 0, padded * sizeof(float)), void();  // no visible key so far
    Float shift = set(now), sums = zero();
    for (int64_t i = 0; i < padded; i += W) {
      Float weight = exp(sub(load(row + i), shift));
      sums = add(sums, weight);
      store(row + i, weight);
    }
    if (before == now || before == NEVER) {
      total[p] += sum(sums);
      return;
    }
    Float factor = exp(set(before - now));
    total[p] = total[p] * largest(factor) + sum(sums);
    for (int64_t i = 0; i < deep; i += W) store(mixed + p * stride + i, mul(load(mixed + p * stride + i), factor));
  }

  // A stretch of `count` keys; rows of keys up to a multiple of ABREAST may hold any numbers. hide(pair, row of scores) sets those of
  // keys that a pair does not see to NEVER; fetch(done, all) is called between products, to prefetch that part of what comes next.
  template <class Hide, class Fetcher>
  void step(const float *keys, const float *values, int64_t value_stride, int64_t count, Hide &&hide, Fetcher &&fetch) {
    int64_t padded = (count + W - 1) / W * W, done = 0;
    int64_t all = (pairs + DOTS - 1) / DOTS * ((count + ABREAST - 1) / ABREAST);
    in_tiles(pairs, DOTS, [&](int64_t first, int64_t rows) {
      for (int64_t k = 0; k < count; k += ABREAST, done++) {
        fetch(done, all);
        DOTS_OF.of[rows](q + first * wide, wide, keys + k * wide, wide, wide, scores[first] + k, LATENT_KEYS);
      }
    });
    for (int64_t p = 0; p < pairs; p++) {
      for (int64_t k = count; k < padded; k++) scores[p][k] = NEVER;
      hide(p, scores[p]);
      soften(p, padded);
    }
    for (int64_t i = 0; i < deep; i += 2 * W)
      in_tiles(pairs, ROWS, [&](int64_t first, int64_t rows) {
        MIXES_OF<float>.of[rows](scores[first], LATENT_KEYS, values + i, value_stride, count, mixed + first * stride + i, stride);
      });
  }

  // The sums as means.
  void divide() {
    for (int64_t p = 0; p < pairs; p++) {
      Float factor = set(total[p] > 0.0f ? 1.0f / total[p] : 0.0f);
      for (int64_t i = 0; i < deep; i += W) store(mixed + p * stride + i, mul(load(mixed + p * stride + i), factor));
    }
  }
};

// Where the latents of a row are.
template <class Number> struct Row {
  const LatentLayer &layer;
  const int32_t *table;

  const Number *at(int64_t key) const {
    int64_t block = key / layer.block_size, place = key - block * layer.block_size;
    return (const Number *)layer.latents + table[block] * layer.block_stride + place * (layer.rank + layer.rope);
  }
  void fetch(int64_t key) const {
    auto *from = (const char *)at(key);
    for (int64_t i = 0; i < (layer.rank + layer.rope) * (int64_t)sizeof(Number); i += gemm::LINE) prefetch_ahead(from + i);
  }
};

template <class Number> void of_share(const LatentAttention &task, const LatentShare &share) {
  const LatentLayer &layer = *task.layer;
  const LatentToken *tokens = task.tokens;
  int64_t heads = layer.heads, wide = latent_wide(layer), deep = latent_deep(layer);
  const LatentToken &own = tokens[share.first / heads];
  Row<Number> row{layer, task.launch->tables + own.row * task.launch->table_stride};
  const int32_t *selected = task.selection ? task.selection + own.token * task.limit : nullptr;
  auto key_at = [&](int64_t number) -> int64_t { return selected ? selected[number] : number; };  // < 0: none
  alignas(64) float keys[LATENT_KEYS * WIDEST_LATENT];
  bool whole = share.part < 0;
  Running running;
  running.pairs = share.count;
  running.q = task.queries + share.first * wide;
  running.wide = wide;
  running.mixed = whole ? task.mixed + share.first * deep : task.partial + share.part * LATENT_PAIRS * (deep + 2);
  running.deep = deep;
  running.stride = whole ? deep : deep + 2;
  running.begin();
  for (int64_t from = share.from; from < share.to; from += LATENT_KEYS) {
    int64_t count = share.to - from < LATENT_KEYS ? share.to - from : LATENT_KEYS;
    for (int64_t k = 0; k < count; k++) {
      int64_t key = key_at(from + k);
      if (key < 0)
        std::memset(keys + k * wide, 0, wide * sizeof(float));
      else
        widen_to(row.at(key), layer.rank + layer.rope, wide, keys + k * wide);
    }
    for (int64_t k = count; k % ABREAST; k++) std::memset(keys + k * wide, 0, wide * sizeof(float));
    auto hide = [&](int64_t pair, float *scores) {
      for (int64_t k = 0; selected && k < count; k++)
        if (selected[from + k] < 0) scores[k] = NEVER;
      int64_t seen = tokens[(share.first + pair) / heads].keys - from;
      for (int64_t k = seen < 0 ? 0 : seen; k < count; k++) scores[k] = NEVER;
    };
    int64_t next = from + count, left = share.to - next < LATENT_KEYS ? share.to - next : LATENT_KEYS;
    running.step(keys, keys, wide, count, hide, [&](int64_t done, int64_t all) {
      for (int64_t k = next + left * done / all; k < next + left * (done + 1) / all; k++)
        if (int64_t key = key_at(k); key >= 0) row.fetch(key);
    });
  }
  if (whole) return running.divide();
  for (int64_t p = 0; p < share.count; p++) {
    float *end = running.mixed + p * running.stride + deep;
    end[0] = running.peak[p];
    end[1] = running.total[p];
  }
}

template <class Number> void attention(const LatentAttention &task, int64_t first, int64_t last) {
  for (int64_t i = first; i < last; i++) of_share<Number>(task, task.shares[i]);
}

// Combines the parts of shares.
inline void join(const LatentAttention &task, int64_t first, int64_t last) {
  int64_t deep = latent_deep(*task.layer), width = deep + 2;
  for (int64_t i = first; i < last; i++) {
    const LatentShare &share = task.shares[i];
    for (int64_t p = 0; share.parts > 1 && p < share.count; p++) {
      const float *parts = task.partial + (share.part * LATENT_PAIRS + p) * width;
      float *mixed = task.mixed + (share.first + p) * deep, most = parts[deep], total = 0.0f;
      for (int64_t n = 1; n < share.parts; n++) most = std::fmax(most, parts[n * LATENT_PAIRS * width + deep]);
      std::memset(mixed, 0, deep * sizeof(float));
      for (int64_t n = 0; n < share.parts; n++) {
        const float *part = parts + n * LATENT_PAIRS * width;
        Float weight = exp(set(part[deep] - most));
        total += part[deep + 1] * largest(weight);
        for (int64_t d = 0; d < deep; d += W) store(mixed + d, fma(load(part + d), weight, load(mixed + d)));
      }
      Float factor = set(total > 0.0f ? 1.0f / total : 0.0f);
      for (int64_t d = 0; d < deep; d += W) store(mixed + d, mul(load(mixed + d), factor));
    }
  }
}

// ---- what is multiplied before and after -----------------------------------------------------------------------------

// The rows of `up` that make the key of a head, or its value.
template <class Number> const Number *up_of(const LatentLayer &layer, int64_t head, bool value) {
  return (const Number *)layer.up + (head * (layer.nope + layer.value) + (value ? layer.nope : 0)) * layer.rank;
}

template <class Number> void absorb(const LatentAttention &task, int64_t first, int64_t last) {
  const LatentLayer &layer = *task.layer;
  int64_t wide = latent_wide(layer), stride = layer.heads * wide, panels = latent_deep(layer) / PANEL;
  alignas(64) float q[ROWS][WIDEST_HEAD], turned[WIDEST_LATENT];
  for (int64_t item = first; item < last; item++) {
    int64_t head = item / LATENT_PIECES, piece = item % LATENT_PIECES;
    int64_t from = panels * piece / LATENT_PIECES * PANEL, to = panels * (piece + 1) / LATENT_PIECES * PANEL;
    if (to > layer.rank) to = layer.rank;
    const Number *up = up_of<Number>(layer, head, false);
    in_tiles(task.count, ROWS, [&](int64_t token, int64_t tokens) {
      float *queries = task.queries + token * stride + head * wide;
      for (int64_t m = 0; m < tokens; m++) {
        auto *own = (const Number *)task.q + task.tokens[token + m].token * task.q_stride + head * (layer.nope + layer.rope);
        widen(own, layer.nope, q[m], layer.scale);
        std::memset(queries + m * stride + from, 0, (to - from) * sizeof(float));
        if (piece) continue;
        widen(own + layer.nope, layer.rope, turned, layer.scale);
        std::memcpy(queries + m * stride + layer.rank, turned, layer.rope * sizeof(float));
        std::memset(queries + m * stride + layer.rank + layer.rope, 0, (wide - layer.rank - layer.rope) * sizeof(float));
      }
      int64_t i = from;
      for (; i + 2 * W <= to; i += 2 * W)
        MIXES_OF<Number>.of[tokens](q[0], WIDEST_HEAD, up + i, layer.rank, layer.nope, queries + i, stride);
      for (; i < to; i++)
        for (int64_t m = 0; m < tokens; m++)
          for (int64_t d = 0; d < layer.nope; d++) queries[m * stride + i] += q[m][d] * entries::widened(up[d * layer.rank + i]);
    });
  }
}

// Multiplies rows of floats with rows `from` to before `to` of up, of layer.rank elements: put(row, number of the row of up, product).
template <class Number, class Put>
void multiply(const LatentLayer &layer, const float *x, int64_t stride, int64_t rows, const Number *up, int64_t from, int64_t to,
              Put &&put) {
  int64_t deep = latent_deep(layer);
  alignas(64) float some[ABREAST][WIDEST_LATENT];
  for (int64_t r = from; r < to; r += ABREAST) {
    int64_t there = to - r < ABREAST ? to - r : ABREAST;
    auto *next = (const char *)(up + (r + ABREAST) * layer.rank);
    for (int64_t i = 0; i < ABREAST * layer.rank * (int64_t)sizeof(Number); i += gemm::LINE) prefetch_ahead(next + i);
    for (int64_t n = 0; n < there; n++) widen_to(up + (r + n) * layer.rank, layer.rank, deep, some[n]);
    for (int64_t n = there; n < ABREAST; n++) std::memset(some[n], 0, deep * sizeof(float));
    in_tiles(rows, DOTS, [&](int64_t first, int64_t count) {
      float products[DOTS][ABREAST];
      DOTS_OF.of[count](x + first * stride, stride, some[0], WIDEST_LATENT, deep, products[0], ABREAST);
      for (int64_t m = 0; m < count; m++)
        for (int64_t n = 0; n < there; n++) put(first + m, r + n, products[m][n]);
    });
  }
}

template <class Number> void values(const LatentAttention &task, int64_t first, int64_t last) {
  const LatentLayer &layer = *task.layer;
  int64_t deep = latent_deep(layer);
  for (int64_t item = first; item < last; item++) {
    int64_t head = item / LATENT_PIECES, piece = item % LATENT_PIECES;
    int64_t from = layer.value * piece / LATENT_PIECES, to = layer.value * (piece + 1) / LATENT_PIECES;
    multiply(layer, task.mixed + head * deep, layer.heads * deep, task.count, up_of<Number>(layer, head, true), from, to,
             [&](int64_t row, int64_t number, float x) {
               auto *out = (Number *)task.out + (task.tokens[row].token * layer.heads + head) * layer.value;
               out[number] = narrowed(x, Number());
             });
  }
}

// ---- keys and values of heads ----------------------------------------------------------------------------------------

template <class Number> void expand(const LatentHeads &task, int64_t first, int64_t last) {
  const LatentLayer &layer = *task.layer;
  int64_t keys = task.launch->kv_len[task.row], padded = padded_keys(keys), stretches = padded / LATENT_KEYS;
  int64_t wide = latent_wide(layer), of_key = widened_to_panels(layer.nope + layer.rope), of_value = widened_to_panels(layer.value);
  Row<Number> row{layer, task.launch->tables + task.row * task.launch->table_stride};
  alignas(64) float latents[LATENT_KEYS * WIDEST_LATENT];
  for (int64_t item = first; item < last; item++) {
    int64_t head = item / stretches, from = item % stretches * LATENT_KEYS;
    int64_t count = keys - from < LATENT_KEYS ? keys - from : LATENT_KEYS;
    float *to_keys = task.keys + (head * padded + from) * of_key, *to_values = task.values + (head * padded + from) * of_value;
    for (int64_t k = 0; k < count; k++) {
      float *latent = latents + k * wide, *key = to_keys + k * of_key;
      widen_to(row.at(from + k), layer.rank + layer.rope, wide, latent);
      std::memcpy(key + layer.nope, latent + layer.rank, layer.rope * sizeof(float));
      std::memset(key + layer.nope + layer.rope, 0, (of_key - layer.nope - layer.rope) * sizeof(float));
      std::memset(to_values + k * of_value + layer.value, 0, (of_value - layer.value) * sizeof(float));
    }
    int64_t number = task.first + head;
    multiply(layer, latents, wide, count, up_of<Number>(layer, number, false), 0, layer.nope,
             [&](int64_t k, int64_t d, float x) { to_keys[k * of_key + d] = x; });
    multiply(layer, latents, wide, count, up_of<Number>(layer, number, true), 0, layer.value,
             [&](int64_t k, int64_t d, float x) { to_values[k * of_value + d] = x; });
  }
}

template <class Number> void of_heads(const LatentHeads &task, int64_t first, int64_t last) {
  const LatentLayer &layer = *task.layer;
  int64_t length = task.launch->length[task.row], before = task.launch->kv_len[task.row] - length;
  int64_t padded = padded_keys(before + length), tiles = (length + LATENT_PAIRS - 1) / LATENT_PAIRS;
  int64_t of_query = layer.nope + layer.rope;
  alignas(64) float q[LATENT_PAIRS * WIDEST_HEAD], mixed[LATENT_PAIRS * WIDEST_HEAD];
  Running running;
  running.q = q;
  running.wide = widened_to_panels(of_query);
  running.mixed = mixed;
  running.deep = running.stride = widened_to_panels(layer.value);
  for (int64_t item = first; item < last; item++) {
    int64_t head = item / tiles, tile = item % tiles, from = length * tile / tiles, to = length * (tile + 1) / tiles;
    int64_t token = task.launch->start[task.row] + from, number = task.first + head;
    const float *keys = task.keys + head * padded * running.wide, *values = task.values + head * padded * running.deep;
    running.pairs = to - from;
    for (int64_t p = 0; p < running.pairs; p++)
      widen_to((const Number *)task.q + (token + p) * task.q_stride + number * of_query, of_query, running.wide,
               q + p * running.wide, layer.scale);
    running.begin();
    for (int64_t k = 0; k < before + to; k += LATENT_KEYS) {
      int64_t count = before + to - k < LATENT_KEYS ? before + to - k : LATENT_KEYS;
      auto hide = [&](int64_t p, float *scores) {
        int64_t seen = before + from + p + 1 - k;
        for (int64_t i = seen < 0 ? 0 : seen; i < count; i++) scores[i] = NEVER;
      };
      running.step(keys + k * running.wide, values + k * running.deep, running.deep, count, hide, [](int64_t, int64_t) {});
    }
    running.divide();
    for (int64_t p = 0; p < running.pairs; p++)
      narrow(mixed + p * running.stride, layer.value,
             (Number *)task.out + ((token + p) * layer.heads + number) * layer.value);
  }
}

}  // namespace VARIANT::latent
