// bfloat16, in packed pairs of k.
#pragma once
#include "fetch.h"

namespace VARIANT::gemm {

// A single row is limited by memory bandwidth alone. It reads in two places, unless the processor prefetches one stream by
// itself, or the terms are always added up in order.
template <int M, bool IN_ORDER> auto order_of(int64_t pairs) {
  if constexpr (IN_ORDER)
    return terms::OneSum();
  else if constexpr (M == 1 && !READS_AHEAD && terms::FEW > 0)
    return terms::Halves(pairs);
  else
    return terms::InOrder();
}

// IN_ORDER: the products of a row are added up in the same order for any M.
template <bool IN_ORDER> struct AnyBf16 {
  using Sum = Float;
  using Number = float;
  using Result = bf16;
  struct Room {};
  template <int WAY> using Fetcher = Fetch<WAY>;
  static constexpr bool WHOLE = true;
  static constexpr int64_t WIDENED = sizeof(terms::Term);
  static constexpr Part<Conversion> WIDEN = terms::WIDEN;
  static int64_t block(const Product &task) {
    constexpr int64_t MOST = BLOCK / (PANEL * sizeof(bf16)), ALIGNED = 8;
    return groups_of(groups_of(task.k, groups_of(task.k, MOST)), ALIGNED) * ALIGNED;
  }
  static void ready(const Product &, int64_t, int64_t, int64_t, Room &) {}

  template <int M, int V> static void begin(const Product &, const At &, Sum (&sum)[M][V]) { clear(sum); }

  template <class Fetcher, int M, int V>
  [[gnu::always_inline]] static void add(const Product &task, const At &at, int left, Sum (&sum)[M][V]) {
    int64_t pairs = groups_of(task.k, 2);
    const bf16 *weights = (const bf16 *)task.packed + (at.panel * pairs + at.from / 2) * 2 * PANEL + 2 * left;
    int64_t k = at.to - at.from;
    Fetcher fetch(weights, groups_of(k, 2), at, left, V * W);
    terms::accumulate(terms::rows_of<M>(task, at.row, at.from), weights, 2 * W, 2 * PANEL, k, sum, fetch,
                      order_of<M, IN_ORDER>(k / 2));
  }

  template <int M, int V> static void end(const Product &, const At &, int, const Sum (&sum)[M][V], Float (&result)[M][V]) {
    for (int m = 0; m < M; m++)
      for (int v = 0; v < V; v++) result[m][v] = sum[m][v];
  }
};
using Bf16 = AnyBf16<false>;
using Bf16InOrder = AnyBf16<true>;

}  // namespace VARIANT::gemm
