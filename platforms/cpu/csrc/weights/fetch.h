// Prefetches weights before a tile of a product reads them, step by step. Each step reads 4 bytes for each output of a panel.
#pragma once
#include <type_traits>

#include "tile.h"

namespace VARIANT::gemm {

constexpr int64_t LINE = 64;           // bytes fetched from memory at once
constexpr int64_t OF_STEP = 4 * PANEL;  // bytes: two lines

// For processors whose own prefetchers keep up with one stream (READS_AHEAD). With up to two rows there is so little to compute
// that they read far enough ahead by themselves, and faster than with explicit prefetches. A tile of more rows computes for
// longer than the processor looks ahead, so weights are fetched into the L2 cache AHEAD steps before they are read. If several
// tiles use a block in turn, only the first would wait for memory: it fetches one of each step's two lines, and the second tile
// fetches the other line of the next block.
template <int M> struct FetchByTiles {
  const char *from;
  int64_t tile, tiles;
  FetchByTiles(const void *weights, int64_t steps, const At &at, int, int) : tile(at.tile), tiles(at.tiles) {
    from = (const char *)weights + (tile == 0 ? AHEAD : steps) * OF_STEP;
  }
  void operator()(int64_t step) const {
    if constexpr (M <= 2) return;
    const char *first = from + step * OF_STEP;
    if (tile == 0) prefetch_ahead(first + LINE);
    if (tiles == 1 || tile == 1) prefetch_ahead(first);
  }
};

// For other processors. A panel that is read once is fetched AHEAD steps before it is read. If it is read in several passes, only
// the first would wait for memory, so each pass fetches a part of what comes after its block.
struct FetchByPasses {
  const char *from;
  uint64_t apart;  // bytes that each of several passes fetches per step, or 0
  // width: outputs of a pass; left: where the pass begins.
  FetchByPasses(const void *weights, int64_t steps, const At &at, int left, int width) {
    int64_t of_tile = PANEL / width, passes = at.tiles * of_tile, pass = at.tile * of_tile + left / width;
    apart = passes == 1 ? 0 : (OF_STEP + passes - 1) / passes;
    from = (const char *)weights - 4 * left + (passes == 1 ? AHEAD * OF_STEP : steps * (OF_STEP + pass * apart));
  }
  void operator()(int64_t step) const {
    uint64_t at = step * apart;
    if (!apart) {
      prefetch(from + step * OF_STEP);
      prefetch(from + step * OF_STEP + LINE);
    } else if (at % LINE < apart) {
      prefetch_ahead(from + at);
    }
  }
};

template <int M> using Fetch = std::conditional_t<READS_AHEAD, FetchByTiles<M>, FetchByPasses>;

}  // namespace VARIANT::gemm
