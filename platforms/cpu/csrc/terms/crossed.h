// Sums as instructions keep them that multiply two rows with two outputs at once: those of two rows alternate.
#pragma once
#include "../kernels.h"

namespace VARIANT::terms {

using namespace simd;

// Of each two rows; a last one by itself stays as it is.
template <class Sum, int M, int V> inline void cross(Sum (&sum)[M][V]) {
  for (int m = 0; m + 1 < M; m += 2)
    for (int v = 0; v < V; v++) {
      Sum one = sum[m][v], other = sum[m + 1][v];
      sum[m][v] = lower_words(one, other), sum[m + 1][v] = upper_words(one, other);
    }
}

template <class Sum, int M, int V> inline void uncross(Sum (&sum)[M][V]) {
  for (int m = 0; m + 1 < M; m += 2)
    for (int v = 0; v < V; v++) {
      Sum lower = sum[m][v], upper = sum[m + 1][v];
      sum[m][v] = even_words(lower, upper), sum[m + 1][v] = odd_words(lower, upper);
    }
}

// Adds products to the crossed sums of two rows. front, back: the halves of eight bytes of each output.
template <class Sum, class Weights, int V>
inline void multiply_two(TwoRows rows, const Weights (&front)[V], const Weights (&back)[V], Sum (&lower)[V], Sum (&upper)[V]) {
  for (int v = 0; v < V; v++) {
    lower[v] = multiply(lower[v], lower_words(front[v], back[v]), rows);
    upper[v] = multiply(upper[v], upper_words(front[v], back[v]), rows);
  }
}

}  // namespace VARIANT::terms
