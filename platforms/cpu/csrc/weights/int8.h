// int8 with 128 added, in packed fours of k, with one scale per output; rows are int8 with one scale each.
#pragma once
#include "fetch.h"

namespace VARIANT::gemm {

struct Int8 {
  using Sum = Whole;
  using Number = int32_t;
  static constexpr int64_t BITS = 8, WIDENED = sizeof(int16_t);
  static constexpr Part<Conversion> WIDEN = terms::WIDEN_BYTES;
  static int64_t unit(const Product &) { return 8; }

  template <int M, int V> static void begin(const Product &task, const At &at, Sum (&sum)[M][V]) {
    for (int m = 0; m < M; m++)
      for (int v = 0; v < V; v++) sum[m][v] = set_whole(-terms::ADDED * task.x_sum[at.row + m]);
  }

  template <class Fetcher, int M, int V>
  [[gnu::always_inline]] static void add(const Product &task, const At &at, int left, Sum (&sum)[M][V]) {
    auto rows = terms::byte_rows_of<M>(task, at.row, at.from);
    int64_t quads = groups_of(task.k, 4), steps = groups_of(at.to - at.from, 4);
    const uint8_t *weights = (const uint8_t *)task.packed + (at.panel * quads + at.from / 4) * 4 * PANEL + 4 * left;
    Fetcher fetch(weights, steps, at, left, V * W);
    terms::accumulate_bytes(rows, weights, 4 * PANEL, steps, sum, fetch);
  }

  template <int M, int V>
  static void end(const Product &task, const At &at, int left, const Sum (&sum)[M][V], Float (&result)[M][V]) {
    const float *scale = (const float *)task.scale + at.panel * PANEL + left;
    for (int m = 0; m < M; m++) {
      Float of_row = set(task.x_scale[at.row + m]);
      for (int v = 0; v < V; v++) result[m][v] = mul(to_float(sum[m][v]), mul(load(scale + v * W), of_row));
    }
  }
};

}  // namespace VARIANT::gemm
