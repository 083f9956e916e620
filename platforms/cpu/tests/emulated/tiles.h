// The instructions of AMX that the kernels use, as immintrin.h has those of AVX-512. A processor refuses registers whose
// shapes do not fit; so does this, by ending the program.
#pragma once
#include <cstdlib>

namespace emulated {

struct Tile {
  int rows, bytes;
  alignas(64) char at[16][64];
  template <class Element> Element *row(int number) { return (Element *)at[number]; }
};
inline thread_local Tile tiles[8];

inline void check(bool fits) {
  if (!fits) std::abort();
}
inline Tile &tile(int number) {
  check(tiles[number].rows);
  return tiles[number];
}

// By words of four bytes: add(sum, word of a row, word of a column).
template <class Sum, class Word, class Other, class Add> void multiply(int to, int left, int right, Add add) {
  Tile &sums = tile(to), &a = tile(left), &b = tile(right);
  check(sums.rows == a.rows && sums.bytes == b.bytes && a.bytes == 4 * b.rows);
  constexpr int EACH = 4 / sizeof(Word);
  for (int m = 0; m < sums.rows; m++)
    for (int n = 0; n < sums.bytes / 4; n++)
      add(sums.row<Sum>(m)[n], b.rows, [&](int k) { return a.row<Word>(m) + EACH * k; },
          [&](int k) { return b.row<Other>(k) + EACH * n; });
}

}  // namespace emulated

inline void _tile_loadconfig(const void *config) {
  auto *bytes = (const uint8_t *)config;
  emulated::check(bytes[0] == 1 && bytes[1] == 0);
  for (int i = 0; i < 8; i++) {
    uint16_t width;
    std::memcpy(&width, bytes + 16 + 2 * i, sizeof width);
    int rows = bytes[48 + i];
    emulated::check(rows <= 16 && width <= 64 && (rows == 0) == (width == 0));
    emulated::tiles[i] = {rows, width, {}};
  }
}
inline void _tile_release() {
  for (auto &tile : emulated::tiles) tile = {};
}
inline void _tile_loadd(int to, const void *from, int64_t stride) {
  emulated::Tile &tile = emulated::tile(to);
  std::memset(tile.at, 0, sizeof tile.at);
  for (int row = 0; row < tile.rows; row++) std::memcpy(tile.at[row], (const char *)from + row * stride, tile.bytes);
}
// Only where in the caches the memory goes is another.
inline void _tile_stream_loadd(int to, const void *from, int64_t stride) { _tile_loadd(to, from, stride); }
inline void _tile_zero(int to) {
  emulated::Tile &tile = emulated::tile(to);
  std::memset(tile.at, 0, sizeof tile.at);
}
inline void _tile_stored(int from, void *to, int64_t stride) {
  emulated::Tile &tile = emulated::tile(from);
  for (int row = 0; row < tile.rows; row++) std::memcpy((char *)to + row * stride, tile.at[row], tile.bytes);
}

// The first of all pairs are added up, and the second ones; then both to the sum.
inline void _tile_dpbf16ps(int to, int left, int right) {
  emulated::multiply<float, uint16_t, uint16_t>(to, left, right, [](float &sum, int pairs, auto row, auto column) {
    float of[2] = {};
    for (int k = 0; k < pairs; k++)
      for (int j = 0; j < 2; j++)
        of[j] = emulated::flushed(std::fma(emulated::widened(row(k)[j]), emulated::widened(column(k)[j]), of[j]));
    sum = emulated::flushed(emulated::flushed(sum) + emulated::flushed(of[0] + of[1]));
  });
}
