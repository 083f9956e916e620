// int8 rows used directly, by instructions that multiply groups of four.
#pragma once
#include "rows.h"

namespace VARIANT::terms {

template <int M> using ByteRows = Apart<int8_t>;

constexpr Part<Conversion> WIDEN_BYTES = nullptr;

// Rows from element `from` on.
template <int M> ByteRows<M> byte_rows_of(const Product &task, int64_t row, int64_t from) {
  return {(const int8_t *)task.x + row * task.x_stride + from, task.x_stride};
}

}  // namespace VARIANT::terms
