// Rows of bf16 as they are, where an instruction multiplies pairs of them.
#pragma once
#include "rows.h"

namespace VARIANT::terms {

using namespace simd;

using Term = bf16;
template <int M> using Rows = Apart<Term>;

constexpr Part<Widening> WIDEN = nullptr;

template <int M> Rows<M> rows_of(const Product &task, int64_t row) {
  return {(const Term *)task.x + row * task.x_stride, task.x_stride};
}
inline void store_terms(Term *to, Float x) { store_bf16(to, x); }

// Adds to the sums of M rows the products of k of their elements with two vectors of packed pairs; `step` elements lead
// from one pair of k to the next. fetch: called with the number of each pair, to bring near what comes later.
template <int M, class Fetcher> inline void accumulate(Apart<Term> rows, const bf16 *left, const bf16 *right, int64_t step,
                                                       int64_t k, Float (&sum)[M][2], Fetcher fetch) {
  for (int64_t p = 0; p < k / 2; p++, left += step, right += step) {
    fetch(p);
    Pairs first = load_pairs(left), second = load_pairs(right);
    for (int m = 0; m < M; m++) {
      Pairs of_row = set_pair(four_bytes(rows.at(m, 2 * p)));
      sum[m][0] = dot(sum[m][0], of_row, first);
      sum[m][1] = dot(sum[m][1], of_row, second);
    }
  }
  if (k % 2) {
    Pairs first = only_first(load_pairs(left)), second = only_first(load_pairs(right));
    for (int m = 0; m < M; m++) {
      Pairs of_row = set_pair(*rows.at(m, k - 1));
      sum[m][0] = dot(sum[m][0], of_row, first);
      sum[m][1] = dot(sum[m][1], of_row, second);
    }
  }
}

}  // namespace VARIANT::terms
