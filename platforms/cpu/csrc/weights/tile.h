// What kinds of weight share: where a tile of a product is.
//
// A kind says of what a vector of its sums is and how it is kept in memory, bits of an element, and of how many elements
// blocks of k are multiples. Of M rows with V vectors of outputs of a panel, from the left-th on, begin() makes sums, add()
// adds a block to them, and end() makes results of them. What adds is always inlined, or its sums are in memory.
#pragma once
#include "../kernels.h"

namespace VARIANT::gemm {

using namespace simd;
using terms::four_bytes;

inline int64_t groups_of(int64_t k, int64_t size) { return (k + size - 1) / size; }

template <int M, int V> inline void clear(Float (&sum)[M][V]) {
  for (auto &row : sum)
    for (auto &vector : row) vector = zero();
}

// Where a tile is: its first row, its panel, which elements of k it takes now, and which it is of the tiles that do so one
// after the other.
struct At {
  int64_t row, panel, from, to, tile, tiles;
};

}  // namespace VARIANT::gemm
