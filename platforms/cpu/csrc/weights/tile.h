// What kinds of weight share: where a tile of a product is, and bringing near what it, and those after it, read.
//
// A kind says of what a vector of its sums is and how it is kept in memory, bits of an element, and of how many elements
// blocks of k are multiples. Of M rows with V vectors of outputs of a panel, from the left-th on, begin() makes sums, add()
// adds a block to them, and end() makes results of them. What adds is always inlined, or its sums are in memory.
#pragma once
#include "../kernels.h"

namespace VARIANT::gemm {

using namespace simd;
using terms::four_bytes;

constexpr uint64_t LINE = 64;  // bytes that come from memory at once

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

// Brings weights near, step by step. A panel that is read but once is fetched a little ahead of what takes it. Of one that is
// read in several passes only the first would wait for memory, so each pass fetches a part of what comes after its block.
// Where AHEAD is 0 nothing is fetched: the processor sees by itself what is read in the order of memory.
struct Fetch {
  static constexpr int64_t OF_STEP = 4 * PANEL;  // bytes
  const char *from;
  uint64_t apart;  // bytes that a pass of several fetches each step, or 0
  // width: outputs of a pass; left: where it begins.
  Fetch(const void *weights, int64_t steps, const At &at, int left, int width) {
    int64_t of_tile = PANEL / width, passes = at.tiles * of_tile, pass = at.tile * of_tile + left / width;
    apart = passes == 1 ? 0 : (OF_STEP + passes - 1) / passes;
    from = (const char *)weights - 4 * left + (passes == 1 ? AHEAD * OF_STEP : steps * (OF_STEP + pass * apart));
  }
  void operator()(int64_t step) const {
    if constexpr (AHEAD == 0) return;
    uint64_t at = step * apart;
    if (!apart) {
      prefetch(from + step * OF_STEP);
      prefetch(from + step * OF_STEP + LINE);
    } else if (at % LINE < apart) {
      prefetch_ahead(from + at);
    }
  }
};

}  // namespace VARIANT::gemm
