// Products of int8 by fours, four rows with four outputs at once; int4 by vectors.
#pragma once
#include "int8_rows.h"
#include "nibbles.h"
#include "outer.h"

namespace VARIANT::terms {

template <int M, int V, class Fetcher>
inline void accumulate_bytes(Apart<int8_t> rows, const uint8_t *weights, int64_t step, int64_t steps, Whole (&sum)[M][V],
                             Fetcher fetch) {
  auto multiply = [](__vector_quad *sums, U16 x, U16 weight) { __builtin_mma_xvi8ger4pp(sums, x, weight); };
  Accumulators<M, V> sums;
  add_outer(WordRows<M>{(const char *)rows.x, rows.stride}, (const char *)weights, 4 * W, step, steps, sums, multiply, fetch);
  sums.add_to(sum);
}

}  // namespace VARIANT::terms
