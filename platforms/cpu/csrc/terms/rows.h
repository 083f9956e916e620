// Rows that are multiplied with packed weights: where an element of one of them is.
#pragma once
#include <cstdint>
#include <cstring>

#include "../kernels.h"

namespace VARIANT::terms {

// One row after the other.
template <class Number> struct Apart {
  const Number *x;
  int64_t stride;
  const Number *at(int m, int64_t i) const { return x + m * stride + i; }
};

// M rows side by side, `Number` by `Number`: read in the order of memory, whatever M is.
template <class Number, int M> struct Woven {
  const Number *x;
  const Number *at(int m, int64_t i) const { return x + i * M + m; }
};

// In which order pairs of a product are taken: which is the i-th.
struct InOrder {
  int64_t operator()(int64_t i) const { return i; }
};
// Both halves side by side: memory gives more to whoever reads in two places at once.
struct Halves {
  int64_t half;
  explicit Halves(int64_t pairs) : half((pairs + 1) / 2) {}
  int64_t operator()(int64_t i) const { return i / 2 + i % 2 * half; }
};

inline uint32_t four_bytes(const void *x) {
  uint32_t bits;
  std::memcpy(&bits, x, sizeof bits);
  return bits;
}

// Rows are dealt out to tiles as evenly as can be: a tile of few rows costs nearly as much as a full one. Whoever weaves
// rows and whoever multiplies them must deal out the same number.
inline int64_t tiles_of(int64_t rows, int64_t most = simd::ROWS) { return (rows + most - 1) / most; }
inline int64_t first_of_tile(int64_t rows, int64_t tile, int64_t most = simd::ROWS) {
  return rows * tile / tiles_of(rows, most);
}

}  // namespace VARIANT::terms
