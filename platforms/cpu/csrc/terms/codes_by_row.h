// Products of int8 rows with codes, row by row.
#pragma once
#include "rows.h"

namespace VARIANT::terms {

using namespace simd;

// The sums as add_eight() keeps them.
template <int M, int V> inline void begin_codes(Whole (&)[M][V]) {}
template <int M, int V> inline void end_codes(Whole (&)[M][V]) {}

// Adds the products of eight elements of M rows, `stride` apart. front, back: of each output the first four, and the others.
template <bool NARROW, int M, int V>
[[gnu::always_inline]] inline void add_eight(const int8_t *x, int64_t stride, const Quads (&front)[V], const Quads (&back)[V],
                                             Whole (&sum)[M][V]) {
  for (int m = 0; m < M; m++) {
    Quads first = set_quad(four_bytes(x + m * stride)), second = set_quad(four_bytes(x + m * stride + 4));
    for (int v = 0; v < V; v++) sum[m][v] = dot_codes<NARROW>(sum[m][v], front[v], back[v], first, second);
  }
}

}  // namespace VARIANT::terms
