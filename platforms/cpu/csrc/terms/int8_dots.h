// Dot products of int8 rows with packed weights, by fours.
#pragma once
#include "int8_rows.h"

namespace VARIANT::terms {

using namespace simd;

// Multiplies `steps` times four elements of M rows with V vectors of packed fours, and adds the products to the sums. step: bytes
// from one four of k to the next. fetch: called with the number of each four, to prefetch later data.
template <int M, int V, class Fetcher>
inline void accumulate_fours(Apart<int8_t> rows, const uint8_t *weights, int64_t step, int64_t steps, Whole (&sum)[M][V],
                             Fetcher &&fetch) {
  for (int64_t q = 0; q < steps; q++) {
    fetch(q);
    Quads weight[V];
    for (int v = 0; v < V; v++) weight[v] = load_weights(weights + q * step + 4 * W * v);
    for (int m = 0; m < M; m++) {
      Quads of_row = set_quad(four_bytes(rows.at(m, 4 * q)));
      for (int v = 0; v < V; v++) sum[m][v] = dot(sum[m][v], weight[v], of_row);
    }
  }
}

}  // namespace VARIANT::terms
