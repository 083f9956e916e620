// Dot products of bf16 rows with packed weights, by pairs.
#pragma once
#include "bf16_rows.h"

namespace VARIANT::terms {

// Multiplies k elements of M rows with V vectors of packed pairs, `apart` elements from each other, and adds the products to the
// sums. step: elements from one pair of k to the next. fetch: called with the number of each pair, to prefetch later data.
template <int M, int V, class Fetcher>
inline void accumulate_pairs(Apart<Term> rows, const bf16 *weights, int64_t apart, int64_t step, int64_t k,
                             Float (&sum)[M][V], Fetcher &&fetch) {
  Cursor<M> row(rows.x, rows.stride * sizeof(Term));
  for (int64_t p = 0; p < k / 2; p++, row.advance(2 * sizeof(Term))) {
    fetch(p);
    Pairs weight[V];
    for (int v = 0; v < V; v++) weight[v] = load_pairs(weights + p * step + v * apart);
    for (int m = 0; m < M; m++) {
      Pairs of_row = set_pair(four_bytes(row.at(m)));
      for (int v = 0; v < V; v++) sum[m][v] = dot(sum[m][v], of_row, weight[v]);
    }
  }
  if (k % 2)
    for (int v = 0; v < V; v++) {
      Pairs weight = only_first(load_pairs(weights + k / 2 * step + v * apart));
      for (int m = 0; m < M; m++) sum[m][v] = dot(sum[m][v], set_pair(*rows.at(m, k - 1)), weight);
    }
}

}  // namespace VARIANT::terms
