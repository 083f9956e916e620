// Products of int8 by eights, two rows at a time.
#pragma once
#include "crossed.h"
#include "int8_dots.h"

namespace VARIANT::terms {

template <int M, int V, class Fetcher>
inline void accumulate_bytes(Apart<int8_t> rows, const uint8_t *weights, int64_t step, int64_t steps, Whole (&sum)[M][V],
                             Fetcher fetch) {
  if constexpr (M == 1) return accumulate_fours(rows, weights, step, steps, sum, fetch);
  cross(sum);
  for (int64_t q = 0; q + 1 < steps; q += 2) {
    fetch(q), fetch(q + 1);
    Quads front[V], back[V];
    for (int v = 0; v < V; v++) {
      front[v] = load_weights(weights + q * step + 4 * W * v);
      back[v] = load_weights(weights + (q + 1) * step + 4 * W * v);
    }
    for (int m = 0; m + 1 < M; m += 2)
      multiply_two(set_rows(rows.at(m, 4 * q), rows.at(m + 1, 4 * q)), front, back, sum[m], sum[m + 1]);
    if (M % 2)
      for (int v = 0; v < V; v++) {
        sum[M - 1][v] = dot(sum[M - 1][v], front[v], set_quad(four_bytes(rows.at(M - 1, 4 * q))));
        sum[M - 1][v] = dot(sum[M - 1][v], back[v], set_quad(four_bytes(rows.at(M - 1, 4 * q + 4))));
      }
  }
  uncross(sum);
  int64_t done = steps / 2 * 2;
  rows.x += 4 * done;
  accumulate_fours(rows, weights + done * step, step, steps - done, sum, [&](int64_t q) { fetch(done + q); });
}

template <int M, int V> inline void begin_nibbles(Nibbles (&sum)[M][V]) { cross(sum); }
template <int M, int V> inline void end_nibbles(Nibbles (&sum)[M][V]) { uncross(sum); }

// Adds the products of eight elements of M rows, `stride` apart. front, back: of each output the first four, and the others.
template <int M, int V>
inline void add_nibbles(const int8_t *x, int64_t stride, const Quads (&front)[V], const Quads (&back)[V],
                        Nibbles (&sum)[M][V]) {
  for (int m = 0; m + 1 < M; m += 2)
    multiply_two(set_rows(x + m * stride, x + (m + 1) * stride), front, back, sum[m], sum[m + 1]);
  if (M % 2)
    for (int v = 0; v < V; v++) {
      const int8_t *last = x + (M - 1) * stride;
      sum[M - 1][v] = dot_nibbles(sum[M - 1][v], front[v], set_quad(four_bytes(last)));
      sum[M - 1][v] = dot_nibbles(sum[M - 1][v], back[v], set_quad(four_bytes(last + 4)));
    }
}

}  // namespace VARIANT::terms
