// int4 with 8 added, in packed eights of k, with one scale per group of k and output; rows as for int8.
#pragma once
#include "fetch.h"

namespace VARIANT::gemm {

struct Int4 {
  using Sum = Float;
  using Number = float;
  static constexpr int64_t BITS = 4, WIDENED = 0;
  static constexpr Part<Conversion> WIDEN = nullptr;
  static int64_t unit(const Product &task) { return task.group; }

  template <int M, int V> static void begin(const Product &, const At &, Sum (&sum)[M][V]) { clear(sum); }

  template <class Fetcher, int M, int V>
  [[gnu::always_inline]] static void add(const Product &task, const At &at, int left, Sum (&sum)[M][V]) {
    const int8_t *x = (const int8_t *)task.x + at.row * task.x_stride + at.from;
    int64_t groups = task.k / task.group, step = 0;
    const uint8_t *weights = (const uint8_t *)task.packed + (at.panel * task.k + at.from) / 8 * 4 * PANEL + 4 * left;
    const bf16 *scale = (const bf16 *)task.scale + (at.panel * groups + at.from / task.group) * PANEL + left;
    Fetcher fetch(weights, (at.to - at.from) / 8, at, left, V * W);
    for (int64_t g = at.from / task.group; g < at.to / task.group; g++, scale += PANEL)
      for (int64_t i = 0; i < task.group; i += NIBBLES) {
        auto before = [&](int m) { return i ? 0 : -8 * task.x_sum[(at.row + m) * groups + g]; };
        int64_t last = task.group < i + NIBBLES ? task.group : i + NIBBLES;
        Nibbles part[M][V];
        for (int m = 0; m < M; m++)
          for (int v = 0; v < V; v++) part[m][v] = set_nibbles(before(m));
        terms::begin_nibbles(part);
        for (int64_t j = i; j < last; j += 8, x += 8, weights += 4 * PANEL) {
          fetch(step++);
          Quads front[V], back[V];
          for (int v = 0; v < V; v++) {
            Quads weight = load_quads(weights + 4 * W * v);
            front[v] = low_halves(weight), back[v] = high_halves(weight);
          }
          terms::add_nibbles(x, task.x_stride, front, back, part);
        }
        terms::end_nibbles(part);
        for (int m = 0; m < M; m++)
          for (int v = 0; v < V; v++)
            sum[m][v] = fma(to_float(total(part[m][v], before(m))), load_bf16(scale + v * W), sum[m][v]);
      }
  }

  template <int M, int V>
  static void end(const Product &task, const At &at, int, const Sum (&sum)[M][V], Float (&result)[M][V]) {
    for (int m = 0; m < M; m++) {
      Float of_row = set(task.x_scale[at.row + m]);
      for (int v = 0; v < V; v++) result[m][v] = mul(sum[m][v], of_row);
    }
  }
};

}  // namespace VARIANT::gemm
