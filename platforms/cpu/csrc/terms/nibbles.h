// Products of int8 rows with int4 by fours.
#pragma once
#include "rows.h"

namespace VARIANT::terms {

using namespace simd;

// The sums as add_nibbles() keeps them.
template <int M, int V> inline void begin_nibbles(Nibbles (&)[M][V]) {}
template <int M, int V> inline void end_nibbles(Nibbles (&)[M][V]) {}

// Adds the products of eight elements of M rows, `stride` apart. front, back: of each output the first four, and the others.
template <int M, int V>
inline void add_nibbles(const int8_t *x, int64_t stride, const Quads (&front)[V], const Quads (&back)[V],
                        Nibbles (&sum)[M][V]) {
  for (int half = 0; half < 2; half++)
    for (int m = 0; m < M; m++) {
      Quads of_row = set_quad(four_bytes(x + m * stride + 4 * half));
      for (int v = 0; v < V; v++) sum[m][v] = dot_nibbles(sum[m][v], half ? back[v] : front[v], of_row);
    }
}

}  // namespace VARIANT::terms
