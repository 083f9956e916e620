// bf16 rows used directly, by instructions that multiply pairs of them.
#pragma once
#include "rows.h"

namespace VARIANT::terms {

using namespace simd;

using Term = bf16;
constexpr int FEW = 0;  // any number of sums is added up in the same order
template <int M> using Rows = Apart<Term>;

constexpr Part<Conversion> WIDEN = nullptr;

// Rows from element `from` on.
template <int M> Rows<M> rows_of(const Product &task, int64_t row, int64_t from) {
  return {(const Term *)task.x + row * task.x_stride + from, task.x_stride};
}
inline void store_terms(Term *to, Float x) { store_bf16(to, x); }

}  // namespace VARIANT::terms
