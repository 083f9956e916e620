// float. Rows are multiplied where they are. A row's products are added up in one order, whatever the number of rows: those of a
// block, then the sums of blocks, since one long sum would lose more.
#pragma once
#include "fetch.h"

namespace VARIANT::gemm {

struct Floats {
  using Sum = Float;
  using Number = float;
  using Result = float;
  struct Room {};
  template <int WAY> using Fetcher = Fetch<WAY>;
  static constexpr bool WHOLE = false;
  static int64_t block(const Product &task) {
    constexpr int64_t MOST = BLOCK / (PANEL * sizeof(float));
    return groups_of(task.k, groups_of(task.k, MOST));
  }
  static void ready(const Product &, int64_t, int64_t, int64_t, Room &) {}

  template <int M, int V> static void begin(const Product &, const At &, Sum (&sum)[M][V]) { clear(sum); }

  template <class Fetcher, int M, int V>
  [[gnu::always_inline]] static void add(const Product &task, const At &at, int left, Sum (&sum)[M][V]) {
    const float *weights = (const float *)task.packed + (at.panel * task.k + at.from) * PANEL + left;
    int64_t k = at.to - at.from;
    Fetcher fetch(weights, k, at, left, V * W);
    Float part[M][V];
    clear(part);
    terms::Cursor<M> row((const float *)task.x + at.row * task.x_stride + at.from, task.x_stride * sizeof(float));
    for (int64_t i = 0; i < k; i++, weights += PANEL, row.advance(sizeof(float))) {
      fetch(i);
      Float weight[V];
      for (int v = 0; v < V; v++) weight[v] = load(weights + v * W);
      for (int m = 0; m < M; m++) {
        Float of_row = set(*(const float *)row.at(m));
        for (int v = 0; v < V; v++) part[m][v] = fma(of_row, weight[v], part[m][v]);
      }
    }
    for (int m = 0; m < M; m++)
      for (int v = 0; v < V; v++) sum[m][v] = simd::add(sum[m][v], part[m][v]);
  }

  template <int M, int V> static void end(const Product &, const At &, int, const Sum (&sum)[M][V], Float (&result)[M][V]) {
    for (int m = 0; m < M; m++)
      for (int v = 0; v < V; v++) result[m][v] = sum[m][v];
  }
};

}  // namespace VARIANT::gemm
