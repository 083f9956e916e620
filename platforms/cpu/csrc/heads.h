// The fused input of attention: normalizes and rotates one token's heads, and stores them where attention reads them.
#pragma once
#include <cmath>

#include "kernels.h"
#include "quantise.h"

namespace VARIANT::heads {

using namespace simd;

inline Float widened(const bf16 *p) { return load_bf16(p); }
inline Float widened(const float *p) { return load(p); }

template <class Number> void norm(float *head, int64_t dim, const Number *weight, float eps, float offset) {
  Float squares = zero();
  for (int64_t i = 0; i < dim; i += W) squares = fma(load(head + i), load(head + i), squares);
  Float factor = set(1.0f / std::sqrt(sum(squares) / (float)dim + eps));
  for (int64_t i = 0; i < dim; i += W)
    store(head + i, mul(mul(load(head + i), factor), add(widened(weight + i), set(offset))));
}

// RoFormer, arXiv:2104.09864.
inline void turn(float *head, const float *cosines, const float *sines, int64_t half, bool neighbours) {
  int64_t i = 0;
  if (!neighbours)
    for (; i + W <= half; i += W) {
      Float a = load(head + i), b = load(head + half + i), cosine = load(cosines + i), sine = load(sines + i);
      store(head + i, sub(mul(a, cosine), mul(b, sine)));
      store(head + half + i, fma(b, cosine, mul(a, sine)));
    }
  for (; i < half; i++) {
    float *a = head + (neighbours ? 2 * i : i), *b = neighbours ? a + 1 : a + half;
    float left = *a, right = *b;
    *a = left * cosines[i] - right * sines[i];
    *b = right * cosines[i] + left * sines[i];
  }
}

struct Token {
  const Layer &layer;
  const float *cosines, *sines;

  // Converts a head to floats, normalizes and rotates it.
  template <class Number> void ready(const Number *x, const Number *weight, float *head) const {
    for (int64_t i = 0; i < layer.cache.dim; i += W) store(head + i, widened(x + i));
    if (weight) norm(head, layer.cache.dim, weight, layer.eps, layer.offset);
    if (cosines) turn(head, cosines, sines, layer.turned / 2, layer.neighbours);
  }
};

inline void round(const float *head, int64_t dim, bf16 *to) {
  for (int64_t i = 0; i < dim; i += W) store_bf16(to + i, load(head + i));
}

// Where a token's key and value of one head are stored; see Cache in kernels.h.
struct Place {
  const Cache &cache;
  int64_t block, head, at;  // at: the token's place in the block

  template <class Number> void key(const Number *x) const {
    Number *to = (Number *)cache.keys + block * cache.key_stride + head * cache.block_size * cache.dim;
    to += at / TOKENS * TOKENS * cache.dim + at % TOKENS * 2;
    for (int64_t i = 0; i < cache.dim; i += 2) std::memcpy(to + i * TOKENS, x + i, 2 * sizeof(Number));
  }
  template <class Number> void value(const Number *x) const {
    Number *to = (Number *)cache.values + block * cache.value_stride + head * cache.block_size * cache.dim;
    to += at / 2 * 2 * cache.dim + at % 2;
    for (int64_t i = 0; i < cache.dim; i++) to[2 * i] = x[i];
  }

  void put(const bf16 *k, const bf16 *v) const {
    if (!cache.key_scales) {
      key(k);
      value(v);
      return;
    }
    int8_t whole[WIDEST];
    key(narrowed(k, whole, cache.key_scales + block * cache.key_scale_stride));
    value(narrowed(v, whole, cache.value_scales + block * cache.value_scale_stride));
  }
  const int8_t *narrowed(const bf16 *x, int8_t *whole, float *scales) const {
    scales[head * cache.block_size + at] = quantise::put_group(quantise::Plain{x}, 0, cache.dim, whole);
    return whole;
  }
};

inline void heads_input(const HeadsInput &task, int64_t first, int64_t last) {
  const Layer &layer = *task.layer;
  const Cache &cache = layer.cache;
  int64_t dim = cache.dim;
  alignas(64) float head[WIDEST];
  alignas(64) bf16 rounded[WIDEST];
  for (int64_t t = first; t < last; t++) {
    const bf16 *x = task.x + t * task.x_stride;
    const float *cosines = layer.cos_sin ? layer.cos_sin + task.launch->positions[t] * layer.turned : nullptr;
    Token token{layer, cosines, cosines ? cosines + layer.turned / 2 : nullptr};
    for (int64_t h = 0; h < task.heads; h++) {
      token.ready(x + h * dim, layer.q_weight, head);
      round(head, dim, task.q + (t * task.heads + h) * dim);
    }
    int64_t slot = task.launch->slots[t], block = slot / cache.block_size, at = slot % cache.block_size;
    const bf16 *keys = x + task.heads * dim, *values = keys + cache.kv_heads * dim;
    for (int64_t h = 0; h < cache.kv_heads; h++) {
      token.ready(keys + h * dim, layer.k_weight, head);
      round(head, dim, rounded);
      Place{cache, block, h, at}.put(rounded, values + h * dim);
    }
  }
}

}  // namespace VARIANT::heads
