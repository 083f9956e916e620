// int8 rows used directly, for instructions that multiply groups of four.
#pragma once
#include "rows.h"

namespace VARIANT::terms {

using namespace simd;

template <int M> using ByteRows = Apart<int8_t>;

constexpr Part<Conversion> WIDEN_BYTES = nullptr;

// Rows from element `from` on.
template <int M> ByteRows<M> byte_rows_of(const Product &task, int64_t row, int64_t from) {
  return {(const int8_t *)task.x + row * task.x_stride + from, task.x_stride};
}

// Multiplies the q-th four elements of M rows with V vectors of packed fours, and adds the products to the sums.
template <int M, int V>
inline void add_products(ByteRows<M> rows, int64_t q, const uint8_t *weights, Whole (&sum)[M][V]) {
  Quads weight[V];
  for (int v = 0; v < V; v++) weight[v] = load_quads(weights + 4 * W * v);
  for (int m = 0; m < M; m++) {
    Quads of_row = set_quad(four_bytes(rows.at(m, 4 * q)));
    for (int v = 0; v < V; v++) sum[m][v] = dot(sum[m][v], weight[v], of_row);
  }
}

}  // namespace VARIANT::terms
