// Products of int8 rows with codes, two rows at a time.
#pragma once
#include "crossed.h"
#include "rows.h"

namespace VARIANT::terms {

template <int M, int V> inline void begin_codes(Whole (&sum)[M][V]) { cross(sum); }
template <int M, int V> inline void end_codes(Whole (&sum)[M][V]) { uncross(sum); }

// Adds the products of eight elements of M rows, `stride` apart. front, back: of each output the first four, and the others.
template <bool NARROW, int M, int V>
inline void add_eight(const int8_t *x, int64_t stride, const Quads (&front)[V], const Quads (&back)[V], Whole (&sum)[M][V]) {
  for (int m = 0; m + 1 < M; m += 2)
    multiply_two(set_rows(x + m * stride, x + (m + 1) * stride), front, back, sum[m], sum[m + 1]);
  if (M % 2) {
    const int8_t *last = x + (M - 1) * stride;
    Quads first = set_quad(four_bytes(last)), second = set_quad(four_bytes(last + 4));
    for (int v = 0; v < V; v++)
      sum[M - 1][v] = dot_codes<NARROW>(sum[M - 1][v], front[v], back[v], first, second);
  }
}

}  // namespace VARIANT::terms
