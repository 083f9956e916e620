// int8 rows widened to 16 bits beforehand, once for all outputs, and interleaved within a tile in pairs: of each four elements,
// first and third, then second and fourth, because a mask or a shift extracts the bytes of a weight in that order.
#pragma once
#include "nibbles.h"

namespace VARIANT::terms {

using namespace simd;

struct Pair {
  int16_t first, second;
};
template <int M> using ByteRows = Woven<Pair, M>;

// Item: a tile. The number of elements in a row is a multiple of four.
inline void widen_bytes(const Conversion &task, int64_t first, int64_t last) {
  for (int64_t tile = first; tile < last; tile++) {
    int64_t row = first_of_tile(task.rows, tile), rows = first_of_tile(task.rows, tile + 1) - row;
    const int8_t *x = (const int8_t *)task.x + row * task.x_stride;
    Pair *to = (Pair *)task.to + row * task.stride / 2;
    for (int64_t i = 0; i < task.k; i += 4)
      for (int64_t at = i; at < i + 2; at++)
        for (int64_t m = 0; m < rows; m++) *to++ = {x[m * task.x_stride + at], x[m * task.x_stride + at + 2]};
  }
}
constexpr Part<Conversion> WIDEN_BYTES = widen_bytes;
constexpr int32_t ADDED = 128;  // to weights

// Rows from element `from` on, a multiple of four.
template <int M> ByteRows<M> byte_rows_of(const Product &task, int64_t row, int64_t from) {
  return {(const Pair *)task.x + row * task.x_stride / 2 + from / 2 * M};
}

template <int M, int V>
inline void add_shorts(ByteRows<M> rows, int64_t i, const Shorts (&weight)[V], Whole (&sum)[M][V]) {
  for (int m = 0; m < M; m++) {
    Shorts of_row = set_shorts(four_bytes(rows.at(m, i)));
    for (int v = 0; v < V; v++) sum[m][v] = dot_whole(sum[m][v], of_row, weight[v]);
  }
}

// Multiplies `steps` times four elements of M rows with V vectors of packed fours, and adds the products to the sums. step: bytes
// from one four of k to the next. fetch: called with the number of each four, to prefetch later data.
template <int M, int V, class Fetcher>
inline void accumulate_bytes(ByteRows<M> rows, const uint8_t *weights, int64_t step, int64_t steps, Whole (&sum)[M][V],
                             Fetcher fetch) {
  for (int64_t q = 0; q < steps; q++, weights += step) {
    fetch(q);
    Shorts weight[V];
    for (int v = 0; v < V; v++) weight[v] = even_bytes(load_quads(weights + 4 * W * v));
    add_shorts(rows, 2 * q, weight, sum);
    for (int v = 0; v < V; v++) weight[v] = odd_bytes(load_quads(weights + 4 * W * v));
    add_shorts(rows, 2 * q + 1, weight, sum);
  }
}

}  // namespace VARIANT::terms
