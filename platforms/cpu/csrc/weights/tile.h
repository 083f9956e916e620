// What all kinds of weight share: the location of a tile in a product.
//
// A kind defines the vector type of its sums and their type in memory, that of results and biases, and the elements of k in a block; what a block has to be
// made of it before tiles use it, by ready(), and the room for that; how a tile fetches weights; whether a single
// tile of rows takes k whole; and how rows are widened for it, if they are, and the bytes of
// a widened element. For M rows and V vectors of a panel's outputs from the left-th on, begin() initializes sums, add() adds a block
// to them, and end() turns them into results. add() must be inlined; otherwise its sums would be in memory.
#pragma once
#include "../kernels.h"

namespace VARIANT::gemm {

using namespace simd;
using terms::four_bytes;

constexpr int64_t BLOCK = 64 << 10;  // bytes of a panel's weights that stay in the cache while all rows use them

inline int64_t groups_of(int64_t k, int64_t size) { return (k + size - 1) / size; }

template <int M, int V> inline void clear(Float (&sum)[M][V]) {
  for (auto &row : sum)
    for (auto &vector : row) vector = zero();
}

// The location of a tile: its first row, its panel, the current range of k, and its number among the tiles that use that range in
// turn. room: what ready() made of that range.
struct At {
  int64_t row, panel, from, to, tile, tiles;
  const void *room;
};

}  // namespace VARIANT::gemm
