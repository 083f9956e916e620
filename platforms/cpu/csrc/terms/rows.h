// Rows that are multiplied with packed weights: how to find an element of a row.
#pragma once
#include <cstdint>
#include <cstring>

#include "../kernels.h"

namespace VARIANT::terms {

// Rows one after the other.
template <class Number> struct Apart {
  const Number *x;
  int64_t stride;
  const Number *at(int m, int64_t i) const { return x + m * stride + i; }
};

// The same element of M rows that lie `stride` bytes apart. One pointer reaches five rows by way of two registers, since with a
// pointer for each row GCC runs out of registers and keeps some of them in vector registers.
template <int M> struct Cursor {
  static constexpr int REACH = 5;
  const char *from[(M + REACH - 1) / REACH];
  int64_t stride, three;
  Cursor(const void *x, int64_t stride) : stride(stride), three(3 * stride) {
    for (auto &row : from) row = (const char *)x + (&row - from) * REACH * stride;
    keep(this->stride), keep(three);
  }
  const char *at(int m) const {
    const char *row = from[m / REACH];
    return m % REACH == 3 ? row + three : row + m % REACH * stride;
  }
  void advance(int64_t bytes) {
    for (auto &row : from) keep(row += bytes);
  }
  // Keeps the compiler from working out other pointers from this one.
  template <class Register> static void keep(Register &in) { asm("" : "+r"(in)); }
};

// M rows interleaved, one `Number` at a time, so that they are read in memory order for any M.
template <class Number, int M> struct Woven {
  const Number *x;
  const Number *at(int m, int64_t i) const { return x + i * M + m; }
};

// The order in which the pairs of a product are processed: the number of the i-th one.
struct InOrder {
  int64_t operator()(int64_t i) const { return i; }
};
// The same, and in one sum for each output, whatever the number of rows.
struct OneSum : InOrder {};
// Both halves alternately: memory bandwidth is higher when two places are read at once.
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

// Rows are divided into tiles as evenly as possible, because a tile of few rows costs nearly as much as a full one. Code that
// interleaves rows and code that multiplies them must divide them in the same way.
inline int64_t tiles_of(int64_t rows, int64_t most = simd::ROWS) { return (rows + most - 1) / most; }
inline int64_t first_of_tile(int64_t rows, int64_t tile, int64_t most = simd::ROWS) {
  return rows * tile / tiles_of(rows, most);
}

}  // namespace VARIANT::terms
