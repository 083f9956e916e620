// Outer products of four rows with four outputs, in words of two bf16, in the accumulators of Power's MMA.
#pragma once
#include "rows.h"

namespace VARIANT::terms {

using namespace simd;

// The sums of one call, four rows by four outputs each. There are eight accumulators.
template <int M, int V> struct Accumulators {
  static constexpr int GROUPS = (M + 3) / 4;
  static_assert(GROUPS * V * 2 <= 8, "more sums than accumulators");
  __vector_quad of[GROUPS][V][2];

  Accumulators() {
    for (auto &group : of)
      for (auto &outputs : group)
        for (auto &one : outputs) __builtin_mma_xxsetaccz(&one);
  }
  template <class R> void add_to(Two<R> (&sum)[M][V]) {
    for (int m = 0; m < M; m += 4)
      for (int v = 0; v < V; v++)
        for (int half = 0; half < 2; half++) {
          R rows[4];
          __builtin_mma_disassemble_acc(rows, &of[m / 4][v][half]);
          for (int i = 0; i < 4 && m + i < M; i++) sum[m + i][v].at[half] += rows[i];
        }
  }
};

// A word of each of four rows; the last row stands for those that are not there.
using Words = U4;
template <int M> struct WordRows {
  const char *x;
  int64_t stride;  // bytes
  const char *at(int m, int64_t word) const { return x + (m < M ? m : M - 1) * stride + 4 * word; }

  Words one(int group, int64_t word) const {
    if constexpr (M == 1) return vec_splats(four_bytes(at(0, word)));
    auto of = [&](int i) { return four_bytes(at(4 * group + i, word)); };
    return Words{of(0), of(1), of(2), of(3)};
  }
  // Four words: the rows' own four, transposed.
  void four(int group, int64_t word, Words (&to)[4]) const {
    if constexpr (M == 1) {
      Words x = simd::at<Words>(at(0, word), 0);
      to[0] = vec_splat(x, 0), to[1] = vec_splat(x, 1), to[2] = vec_splat(x, 2), to[3] = vec_splat(x, 3);
      return;
    }
    using Doubles = __vector unsigned long long;
    auto of = [&](int i) { return simd::at<Words>(at(4 * group + i, word), 0); };
    auto upper = [](Words a, Words b) { return (Words)vec_mergeh((Doubles)a, (Doubles)b); };
    auto lower = [](Words a, Words b) { return (Words)vec_mergel((Doubles)a, (Doubles)b); };
    Words first = vec_mergeh(of(0), of(1)), second = vec_mergeh(of(2), of(3));
    to[0] = upper(first, second), to[1] = lower(first, second);
    first = vec_mergel(of(0), of(1)), second = vec_mergel(of(2), of(3));
    to[2] = upper(first, second), to[3] = lower(first, second);
  }
};

// Multiplies `words` words of M rows with V vectors of packed words, `apart` bytes from each other. step: bytes from one word of k
// to the next. multiply: adds an outer product to an accumulator. fetch: called with the number of each word.
template <int M, int V, class Multiply, class Fetcher>
[[gnu::always_inline]] inline void add_outer(WordRows<M> rows, const char *weights, int64_t apart, int64_t step, int64_t words,
                                             Accumulators<M, V> &sums, Multiply multiply, Fetcher &fetch) {
  constexpr int GROUPS = Accumulators<M, V>::GROUPS;
  auto add = [&](const Words (&of_rows)[GROUPS], int64_t word) {
    fetch(word);
    for (int v = 0; v < V; v++)
      for (int half = 0; half < 2; half++) {
        U16 weight = simd::at<U16>(weights + word * step + v * apart, half);
        for (int group = 0; group < GROUPS; group++) multiply(&sums.of[group][v][half], (U16)of_rows[group], weight);
      }
  };
  int64_t word = 0;
  for (; word + 4 <= words; word += 4) {
    Words four[GROUPS][4];
    for (int group = 0; group < GROUPS; group++) rows.four(group, word, four[group]);
    for (int i = 0; i < 4; i++) {
      Words one[GROUPS];
      for (int group = 0; group < GROUPS; group++) one[group] = four[group][i];
      add(one, word + i);
    }
  }
  for (; word < words; word++) {
    Words one[GROUPS];
    for (int group = 0; group < GROUPS; group++) one[group] = rows.one(group, word);
    add(one, word);
  }
}

}  // namespace VARIANT::terms
