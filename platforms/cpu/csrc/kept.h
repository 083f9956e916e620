// How keys and values are multiplied, for each way of storing them. M (token, head) pairs at once.
#pragma once
#include "gemm.h"
#include "kernels.h"

namespace VARIANT::attention {

using namespace simd;
using terms::Apart;
using terms::Term;
using terms::store_terms;

constexpr int64_t STRETCH = STEP;  // keys
constexpr int64_t WIDE = 2 * TOKENS;

// Prefetches what comes next, in memory order: each step of a product fetches as many elements as it multiplies. Fetching what is
// already cached costs little, and memory is read while the cores compute. first, second: the halves, which may be apart.
template <class Number> struct Fetch {
  static constexpr int64_t OF_STEP = WIDE * 2 * sizeof(Number);  // bytes
  const char *first, *second;
  int64_t half;  // bytes in one half
  Fetch(const Number *first, const Number *second, int64_t elements)
      : first((const char *)first), second((const char *)second), half(elements * sizeof(Number)) {}
  void operator()(int64_t step) const {
    int64_t at = step * OF_STEP;
    const char *from = at < half ? first + at : second + at - half;
    for (int64_t i = 0; i < OF_STEP; i += gemm::LINE) prefetch_ahead(from + i);
  }
};

// The keys and values of one head of a row, in stretches, in groups of 16 tokens.
struct Head {
  const Cache &cache;
  const int32_t *table;
  int64_t number;
  struct Tokens {
    int64_t block, before;  // before: tokens of all heads before these in the block
  } tokens[STRETCH / TOKENS];

  // Looks up the blocks of a stretch; from is a multiple of 16.
  void find(int64_t from, int64_t count) {
    for (int64_t t = 0; t < count; t += TOKENS) {
      int64_t block = (from + t) / cache.block_size;
      tokens[t / TOKENS] = {table[block], number * cache.block_size + from + t - block * cache.block_size};
    }
  }

  template <class Number> const Number *keys(int64_t i) const {
    return (const Number *)cache.keys + tokens[i].block * cache.key_stride + tokens[i].before * cache.dim;
  }
  template <class Number> const Number *values(int64_t i) const {
    return (const Number *)cache.values + tokens[i].block * cache.value_stride + tokens[i].before * cache.dim;
  }
  // The keys of 16 tokens, inside or outside the stretch; from is a multiple of 16.
  template <class Number> const Number *keys_from(int64_t from) const {
    int64_t block = from / cache.block_size, before = number * cache.block_size + from - block * cache.block_size;
    return (const Number *)cache.keys + table[block] * cache.key_stride + before * cache.dim;
  }
  const float *key_scales(int64_t i) const {
    return cache.key_scales + tokens[i].block * cache.key_scale_stride + tokens[i].before;
  }
  const float *value_scales(int64_t i) const {
    return cache.value_scales + tokens[i].block * cache.value_scale_stride + tokens[i].before;
  }
};

// The keys of the next stretch, of this head or another, in groups of 16 tokens.
struct Coming {
  const void *keys[STRETCH / TOKENS];
  int64_t parts;  // per group of 16 keys

  // What to fetch during the number-th multiplication of 16 values, or of WIDE elements of each.
  template <class Number> Fetch<Number> part(int64_t number) const {
    constexpr int64_t ELEMENTS = TOKENS * WIDE;
    const Number *first = (const Number *)keys[number / parts] + number % parts * ELEMENTS;
    return {first, first + ELEMENTS / 2, ELEMENTS / 2};
  }
};

// Keys and values in bf16.
template <int M> struct Bf16Kept {
  alignas(64) Term q[M][WIDEST];
  alignas(64) Term weights[M][STRETCH];
  bool in_order;  // see Layer

  using Number = bf16;

  // Like terms::accumulate(), which adds up few pairs in an order of its own.
  template <class... Arguments> void accumulate(Arguments &&...arguments) const {
    if constexpr (M * 2 < terms::FEW)
      if (in_order) return terms::accumulate(arguments..., terms::OneSum());
    terms::accumulate(arguments...);
  }

  void ask(int m, const bf16 *query, int64_t dim) {
    for (int64_t i = 0; i < dim; i += W) store_terms(q[m] + i, load_bf16(query + i));
  }

  // Multiplies the queries with W keys, from the left-th on, of each of two groups of 16, near and far. Prefetches the values of
  // both groups.
  void products(const Head &head, int64_t near, int64_t far, int left, Float (&sum)[M][2]) const {
    gemm::clear(sum);
    const bf16 *keys = head.keys<bf16>(near) + 2 * left;
    accumulate(Apart<Term>{q[0], WIDEST}, keys, head.keys<bf16>(far) - head.keys<bf16>(near), WIDE, head.cache.dim, sum,
               Fetch<bf16>{head.values<bf16>(near), head.values<bf16>(far), TOKENS * head.cache.dim});
  }

  void begin(const Head &, int64_t) {}
  // Stores the weights of a pair for W keys, from the i-th of the stretch on.
  void weigh(int m, int64_t i, Float weight, float *) { store_terms(weights[m] + i, weight); }
  void weighed(int, int64_t, float *) {}

  // Adds the weighted values: W elements from the left-th on, and W elements `apart` further. Prefetches a part of the keys that
  // come next.
  void mix(const Head &head, int64_t count, int64_t left, int64_t apart, const Coming &coming, Float (&sum)[M][2]) const {
    for (int64_t t = 0; t < count; t += TOKENS) {
      const bf16 *near = head.values<bf16>(t / TOKENS) + 2 * left;
      int64_t tokens = count - t < TOKENS ? count - t : TOKENS;
      accumulate(Apart<Term>{weights[0] + t, STRETCH}, near, 2 * apart, 2 * head.cache.dim, tokens, sum,
                 coming.part<bf16>((left / WIDE * count + t) / TOKENS));
    }
  }
};

// Keys and values in int8, with one scale per token. Queries and weights are quantized to int16, which loses less than bf16 does;
// keys and values are widened to int16 when they are read. A sum over WIDEST elements, or STRETCH keys, fits in 32 bits.
template <int M> struct Int8Kept {
  alignas(64) int16_t q[M][WIDEST];
  alignas(64) int16_t weights[M][STRETCH];
  alignas(64) float scales[STRETCH];  // of the stretch's values
  float q_scale[M], weight_scale[M];
  bool in_order;  // whole numbers are the same in any order

  using Number = int8_t;

  // Quantizes x to int16 and returns the scale, so that x is about scale * to. The scale is NaN if an element is NaN or infinite.
  static float narrow(const float *x, int64_t count, int16_t *to) {
    Float each = zero(), poison = zero();
    for (int64_t i = 0; i < count; i += W) {
      each = max(each, magnitude(load(x + i)));
      poison = fma(load(x + i), zero(), poison);
    }
    float most = largest(each), none = sum(poison);
    if (none != 0.0f) {
      std::memset(to, 0, count * sizeof(int16_t));
      return none;
    }
    Float factor = set(most > 0.0f ? 32767.0f / most : 0.0f);
    for (int64_t i = 0; i < count; i += W) store_int16(to + i, mul(load(x + i), factor));
    return most / 32767.0f;
  }

  void ask(int m, const bf16 *query, int64_t dim) {
    alignas(64) float wide[WIDEST];
    for (int64_t i = 0; i < dim; i += W) store(wide + i, load_bf16(query + i));
    q_scale[m] = narrow(wide, dim, q[m]);
  }

  // step: elements from one pair to the next.
  static void accumulate(const int16_t *x, int64_t stride, const int8_t *left, const int8_t *right, int64_t step, int64_t k,
                         Whole (&sum)[M][2], const Fetch<int8_t> &fetch) {
    for (int64_t p = 0; p < k / 2; p++, left += step, right += step) {
      fetch(p);
      Shorts first = widen_pairs(left), second = widen_pairs(right);
      for (int m = 0; m < M; m++) {
        Shorts of_row = set_shorts(terms::four_bytes(x + m * stride + 2 * p));
        sum[m][0] = dot_whole(sum[m][0], of_row, first);
        sum[m][1] = dot_whole(sum[m][1], of_row, second);
      }
    }
  }
  static void clear(Whole (&sum)[M][2]) {
    for (auto &row : sum) row[0] = row[1] = set_whole(0);
  }

  void products(const Head &head, int64_t near, int64_t far, int left, Float (&sum)[M][2]) const {
    Whole whole[M][2];
    clear(whole);
    accumulate(q[0], WIDEST, head.keys<int8_t>(near) + 2 * left, head.keys<int8_t>(far) + 2 * left, WIDE, head.cache.dim,
               whole, {head.values<int8_t>(near), head.values<int8_t>(far), TOKENS * head.cache.dim});
    Float first = load(head.key_scales(near) + left), second = load(head.key_scales(far) + left);
    for (int m = 0; m < M; m++) {
      sum[m][0] = mul(to_float(whole[m][0]), mul(first, set(q_scale[m])));
      sum[m][1] = mul(to_float(whole[m][1]), mul(second, set(q_scale[m])));
    }
  }

  void begin(const Head &head, int64_t count) {
    for (int64_t t = 0; t < count; t += TOKENS)
      std::memcpy(scales + t, head.value_scales(t / TOKENS), TOKENS * sizeof(float));
  }
  // The scale of a missing value may be anything, so it must not turn a weight of 0 into NaN.
  void weigh(int, int64_t i, Float weight, float *wide) {
    store(wide + i, only_where(weight, mul(weight, load(scales + i))));
  }
  void weighed(int m, int64_t padded, float *wide) { weight_scale[m] = narrow(wide, padded, weights[m]); }

  void mix(const Head &head, int64_t count, int64_t left, int64_t apart, const Coming &coming, Float (&sum)[M][2]) const {
    Whole whole[M][2];
    clear(whole);
    for (int64_t t = 0; t < count; t += TOKENS) {
      const int8_t *near = head.values<int8_t>(t / TOKENS) + 2 * left;
      int64_t tokens = count - t < TOKENS ? count - t + 1 : TOKENS;  // a key past the end, of weight 0, completes a pair
      accumulate(weights[0] + t, STRETCH, near, near + 2 * apart, 2 * head.cache.dim, tokens, whole,
                 coming.part<int8_t>((left / WIDE * count + t) / TOKENS));
    }
    for (int m = 0; m < M; m++)
      for (int side = 0; side < 2; side++)
        sum[m][side] = fma(to_float(whole[m][side]), set(weight_scale[m]), sum[m][side]);
  }
};

}  // namespace VARIANT::attention
