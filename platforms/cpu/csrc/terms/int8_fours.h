// Products of int8 by fours, whatever the number of rows.
#pragma once
#include "int8_dots.h"
#include "nibbles.h"

namespace VARIANT::terms {

template <int M, int V, class Fetcher>
inline void accumulate_bytes(Apart<int8_t> rows, const uint8_t *weights, int64_t step, int64_t steps, Whole (&sum)[M][V],
                             Fetcher fetch) {
  accumulate_fours(rows, weights, step, steps, sum, fetch);
}

}  // namespace VARIANT::terms
