// bf16 rows widened to floats beforehand, once for all outputs, and interleaved within a tile. Only weights are widened when they
// are read.
#pragma once
#include <type_traits>

#include "rows.h"

namespace VARIANT::terms {

using namespace simd;

using Term = float;
constexpr int FEW = 8;  // fewer sums have others for second elements, which would otherwise wait for the first
template <int M> using Rows = Woven<Term, M>;

// Item: a tile.
inline void widen(const Conversion &task, int64_t first, int64_t last) {
  for (int64_t tile = first; tile < last; tile++) {
    int64_t row = first_of_tile(task.rows, tile), rows = first_of_tile(task.rows, tile + 1) - row;
    const bf16 *x = (const bf16 *)task.x + row * task.x_stride;
    Term *to = (Term *)task.to + row * task.stride;
    for (int64_t i = 0; i < task.k; i++)
      for (int64_t m = 0; m < rows; m++) *to++ = single::widened(x[m * task.x_stride + i]);
  }
}
constexpr Part<Conversion> WIDEN = widen;

// Rows from element `from` on.
template <int M> Rows<M> rows_of(const Product &task, int64_t row, int64_t from) {
  return {(const Term *)task.x + row * task.x_stride + from * M};
}
inline void store_terms(Term *to, Float x) { store(to, x); }

template <class Rows, int M, int V>
inline void add_products(Rows rows, int64_t i, const Float (&weight)[V], Float (&sum)[M][V]) {
  for (int m = 0; m < M; m++) {
    Float of_row = set(*rows.at(m, i));
    for (int v = 0; v < V; v++) sum[m][v] = fma(of_row, weight[v], sum[m][v]);
  }
}

// Multiplies k elements of M rows with V vectors of packed pairs, `apart` elements from each other, and adds the products to the
// sums. step: elements from one pair of k to the next. fetch: called with the number of each pair, to prefetch later data. order:
// of the pairs. The products of a pair's first elements are added before its second elements are loaded, so that nearly all
// registers hold sums.
template <class Rows, int M, int V, class Fetcher, class Order = InOrder>
inline void accumulate(Rows rows, const bf16 *weights, int64_t apart, int64_t step, int64_t k, Float (&sum)[M][V],
                       Fetcher fetch, Order order = {}) {
  constexpr bool APART = M * V < FEW && !std::is_same_v<Order, OneSum>;
  Float others[M][V], weight[V];
  for (auto &row : others)
    for (auto &vector : row) vector = zero();
  auto add_first = [&](int64_t p) {
    for (int v = 0; v < V; v++) weight[v] = first_of(load_pairs(weights + p * step + v * apart));
    add_products(rows, 2 * p, weight, sum);
  };
  for (int64_t i = 0; i < k / 2; i++) {
    int64_t p = order(i);
    fetch(p);
    add_first(p);
    for (int v = 0; v < V; v++) weight[v] = second_of(load_pairs(weights + p * step + v * apart));
    add_products(rows, 2 * p + 1, weight, APART ? others : sum);
  }
  if (k % 2) add_first(k / 2);
  if constexpr (APART)
    for (int m = 0; m < M; m++)
      for (int v = 0; v < V; v++) sum[m][v] = add(sum[m][v], others[m][v]);
}

}  // namespace VARIANT::terms
