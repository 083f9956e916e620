// Products of bf16 by pairs, four rows with four outputs at once.
#pragma once
#include "bf16_rows.h"
#include "outer.h"

namespace VARIANT::terms {

template <int M, int V, class Fetcher, class Order = InOrder>
inline void accumulate(Apart<Term> rows, const bf16 *weights, int64_t apart, int64_t step, int64_t k, Float (&sum)[M][V],
                       Fetcher fetch, Order = {}) {
  auto multiply = [](__vector_quad *sums, U16 x, U16 weight) { __builtin_mma_xvbf16ger2pp(sums, x, weight); };
  Accumulators<M, V> sums;
  const char *from = (const char *)weights;
  int64_t between = apart * sizeof(bf16), next = step * sizeof(bf16);
  add_outer(WordRows<M>{(const char *)rows.x, rows.stride * (int64_t)sizeof(Term)}, from, between, next, k / 2, sums, multiply,
            fetch);
  if (k % 2) {  // the pair's other weight may be anything
    auto of = [&](int m) { return (uint32_t)*rows.at(m < M ? m : M - 1, k - 1); };
    for (int v = 0; v < V; v++)
      for (int half = 0; half < 2; half++) {
        Words weight = simd::at<Words>(from + k / 2 * next + v * between, half) & 0xffff;
        for (int m = 0; m < M; m += 4)
          multiply(&sums.of[m / 4][v][half], (U16)Words{of(m), of(m + 1), of(m + 2), of(m + 3)}, (U16)weight);
      }
  }
  sums.add_to(sum);
}

}  // namespace VARIANT::terms
