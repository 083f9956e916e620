// Products of bf16 by pairs, whatever the number of rows.
#pragma once
#include "bf16_dots.h"

namespace VARIANT::terms {

template <int M, int V, class Fetcher>
inline void accumulate(Apart<Term> rows, const bf16 *weights, int64_t apart, int64_t step, int64_t k, Float (&sum)[M][V],
                       Fetcher fetch, InOrder = {}) {
  accumulate_pairs(rows, weights, apart, step, k, sum, fetch);
}

}  // namespace VARIANT::terms
