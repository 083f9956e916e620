// Rows of bf16 widened to floats beforehand, once for all outputs, and those of a tile woven together: only weights are
// widened as they are read.
#pragma once
#include "rows.h"

namespace VARIANT::terms {

using namespace simd;

using Term = float;
template <int M> using Rows = Woven<Term, M>;

// Item: a tile.
inline void widen(const Widening &task, int64_t first, int64_t last) {
  for (int64_t tile = first; tile < last; tile++) {
    int64_t row = first_of_tile(task.rows, tile), rows = first_of_tile(task.rows, tile + 1) - row;
    const bf16 *x = (const bf16 *)task.x + row * task.x_stride;
    Term *to = (Term *)task.to + row * task.stride;
    for (int64_t i = 0; i < task.k; i++)
      for (int64_t m = 0; m < rows; m++) *to++ = single::widened(x[m * task.x_stride + i]);
  }
}
constexpr Part<Widening> WIDEN = widen;

template <int M> Rows<M> rows_of(const Product &task, int64_t row) { return {(const Term *)task.x + row * task.x_stride}; }
inline void store_terms(Term *to, Float x) { store(to, x); }

template <class Rows, int M> void add_products(Rows rows, int64_t i, Float left, Float right, Float (&sum)[M][2]) {
  for (int m = 0; m < M; m++) {
    Float of_row = set(*rows.at(m, i));
    sum[m][0] = fma(of_row, left, sum[m][0]);
    sum[m][1] = fma(of_row, right, sum[m][1]);
  }
}

// Adds to the sums of M rows the products of k of their elements with two vectors of packed pairs; `step` elements lead
// from one pair of k to the next. fetch: called with the number of each pair, to bring near what comes later. What a pair's
// first elements give is added before the second ones are looked at, so that nearly all registers hold sums.
template <class Rows, int M, class Fetcher>
inline void accumulate(Rows rows, const bf16 *left, const bf16 *right, int64_t step, int64_t k, Float (&sum)[M][2],
                       Fetcher fetch) {
  constexpr bool FEW = M < 3;  // sums of their own for second elements, or they would wait for the first
  Float others[M][2];
  for (auto &row : others) row[0] = row[1] = zero();
  for (int64_t p = 0; p < k / 2; p++, left += step, right += step) {
    fetch(p);
    add_products(rows, 2 * p, first_of(load_pairs(left)), first_of(load_pairs(right)), sum);
    add_products(rows, 2 * p + 1, second_of(load_pairs(left)), second_of(load_pairs(right)), FEW ? others : sum);
  }
  if (k % 2) add_products(rows, k - 1, first_of(load_pairs(left)), first_of(load_pairs(right)), sum);
  if constexpr (FEW)
    for (int m = 0; m < M; m++)
      for (int side = 0; side < 2; side++) sum[m][side] = add(sum[m][side], others[m][side]);
}

}  // namespace VARIANT::terms
