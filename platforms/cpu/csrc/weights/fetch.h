// Prefetches weights before a tile of a product reads them, step by step. Each step reads 4 bytes for each output of a panel.
#pragma once
#include <type_traits>

#include "tile.h"

namespace VARIANT::gemm {

constexpr int64_t LINE = 64;           // bytes fetched from memory at once
constexpr int64_t OF_STEP = 4 * PANEL;  // bytes: two lines

// For processors whose own prefetchers keep up with one stream (READS_AHEAD): fetches LINES of each step's two lines into the L2
// cache. With up to two rows there is so little to compute that the processor reads far enough ahead by itself, and faster than
// with explicit prefetches. A tile of more rows computes for longer than the processor looks ahead, so weights are fetched AHEAD
// steps before they are read. If several tiles use a block in turn, only the first would wait for memory: it fetches one of each
// step's two lines, the second tile fetches the other line of the next block, and the others fetch nothing.
template <int LINES> struct FetchLines {
  const char *from;  // where the lines of step 0 begin
  FetchLines(const void *weights, int64_t steps, const At &at, int, int) : from((const char *)weights) {
    from += at.tile ? steps * OF_STEP : AHEAD * OF_STEP + (LINES == 1 ? LINE : 0);
  }
  void operator()(int64_t step) const {
    for (int line = 0; line < LINES; line++) prefetch_ahead(from + step * OF_STEP + line * LINE);
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

// How a tile fetches. Each way is compiled apart, because in one loop for all GCC runs out of registers.
constexpr int WAYS = READS_AHEAD ? 3 : 1;
template <int WAY> using Fetch = std::conditional_t<READS_AHEAD, FetchLines<WAY>, FetchByPasses>;

// Whether tiles of so many rows ever fetch in this way: rows are dealt out evenly, so one of several tiles is at least half full.
constexpr bool is_used(int way, int rows) {
  if (!READS_AHEAD) return true;
  return way == 2 ? rows > 2 : rows >= ROWS / 2 || (way == 0 && rows <= 2);
}

constexpr int way_of(const At &at, int64_t rows) {
  if (!READS_AHEAD || rows <= 2 || at.tile > 1) return 0;
  return at.tiles == 1 ? 2 : 1;
}
constexpr At ONLY_TILE{0, 0, 0, 0, 0, 1, nullptr};

}  // namespace VARIANT::gemm
