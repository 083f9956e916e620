// Products of bf16 by fours, two rows at a time. Such an instruction adds up like two for pairs, so a row's sums do not depend on
// whether there is another row.
#pragma once
#include "bf16_dots.h"
#include "crossed.h"

namespace VARIANT::terms {

template <int M, int V, class Fetcher>
inline void accumulate(Apart<Term> rows, const bf16 *weights, int64_t apart, int64_t step, int64_t k, Float (&sum)[M][V],
                       Fetcher fetch, InOrder = {}) {
  if constexpr (M == 1) return accumulate_pairs(rows, weights, apart, step, k, sum, fetch);
  cross(sum);
  Cursor<M> row(rows.x, rows.stride * sizeof(Term));
  for (int64_t p = 0; p + 1 < k / 2; p += 2, row.advance(4 * sizeof(Term))) {
    fetch(p), fetch(p + 1);
    Pairs front[V], back[V];
    for (int v = 0; v < V; v++) {
      front[v] = load_pairs(weights + p * step + v * apart);
      back[v] = load_pairs(weights + (p + 1) * step + v * apart);
    }
    for (int m = 0; m + 1 < M; m += 2)
      multiply_two(set_rows(row.at(m), row.at(m + 1)), front, back, sum[m], sum[m + 1]);
    if (M % 2)
      for (int v = 0; v < V; v++) {
        const char *last = row.at(M - 1);
        sum[M - 1][v] = dot(sum[M - 1][v], set_pair(four_bytes(last)), front[v]);
        sum[M - 1][v] = dot(sum[M - 1][v], set_pair(four_bytes(last + 4)), back[v]);
      }
  }
  uncross(sum);
  int64_t done = k / 4 * 4;
  rows.x += done;
  accumulate_pairs(rows, weights + done / 2 * step, apart, step, k - done, sum, [&](int64_t p) { fetch(done / 2 + p); });
}

}  // namespace VARIANT::terms
