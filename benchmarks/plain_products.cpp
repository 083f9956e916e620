// The rate that a product of small batches can reach on this machine: one tile shape per type, weights packed beforehand, and a
// range of the outputs per thread. It has no scales, biases or tails, and writes float32 or int32: a ceiling, not a kernel.
#include <immintrin.h>

#include <cstdint>
#include <type_traits>

namespace {

constexpr int PANEL = 32;

#if defined(__AVX512BF16__) && defined(__AVX512VNNI__)
constexpr int TALL_BF16 = 12, TALL_INT8 = 8;

// y [rows, 32] = x [rows, k] times a panel [k / 2][32][2] of bfloat16.
template <int ROWS> void bf16_tile(const uint16_t *x, const uint16_t *panel, float *y, int n, int k) {
  __m512 sums[ROWS][2] = {};
  for (int i = 0; i < k; i += 2, panel += 2 * PANEL) {
    _mm_prefetch((const char *)(panel + 24 * 2 * PANEL), _MM_HINT_T0);
    _mm_prefetch((const char *)(panel + 25 * 2 * PANEL - PANEL), _MM_HINT_T0);
    auto left = (__m512bh)_mm512_loadu_si512(panel), right = (__m512bh)_mm512_loadu_si512(panel + PANEL);
    for (int r = 0; r < ROWS; r++) {
      auto pair = (__m512bh)_mm512_set1_epi32(*(const int32_t *)(x + r * k + i));
      sums[r][0] = _mm512_dpbf16_ps(sums[r][0], pair, left);
      sums[r][1] = _mm512_dpbf16_ps(sums[r][1], pair, right);
    }
  }
  for (int r = 0; r < ROWS; r++)
    for (int side = 0; side < 2; side++) _mm512_storeu_ps(y + (int64_t)r * n + 16 * side, sums[r][side]);
}

// The same for bytes: x is unsigned, the panel [k / 4][32][4] signed.
template <int ROWS> void int8_tile(const uint8_t *x, const int8_t *panel, int32_t *y, int n, int k) {
  __m512i sums[ROWS][2] = {};
  for (int i = 0; i < k; i += 4, panel += 4 * PANEL) {
    _mm_prefetch((const char *)(panel + 16 * 4 * PANEL), _MM_HINT_T0);
    _mm_prefetch((const char *)(panel + 16 * 4 * PANEL + 64), _MM_HINT_T0);
    auto left = _mm512_loadu_si512(panel), right = _mm512_loadu_si512(panel + 64);
    for (int r = 0; r < ROWS; r++) {
      auto four = _mm512_set1_epi32(*(const int32_t *)(x + r * k + i));
      sums[r][0] = _mm512_dpbusd_epi32(sums[r][0], four, left);
      sums[r][1] = _mm512_dpbusd_epi32(sums[r][1], four, right);
    }
  }
  for (int r = 0; r < ROWS; r++)
    for (int side = 0; side < 2; side++) _mm512_storeu_si512(y + (int64_t)r * n + 16 * side, sums[r][side]);
}

#else  // AVX2: bfloat16 is widened when it is read, and sums of two byte products may saturate
constexpr int TALL_BF16 = 4, TALL_INT8 = 4;

template <int ROWS> void bf16_tile(const uint16_t *x, const uint16_t *panel, float *y, int n, int k) {
  const __m256i upper = _mm256_set1_epi32((int)0xffff0000);
  for (int column = 0; column < PANEL; column += 16) {
    __m256 sums[ROWS][2] = {};
    const uint16_t *weights = panel + 2 * column;
    for (int i = 0; i < k; i += 2, weights += 2 * PANEL) {
      _mm_prefetch((const char *)(weights + 12 * 2 * PANEL), _MM_HINT_T0);
      for (int side = 0; side < 2; side++) {
        __m256i pairs = _mm256_loadu_si256((const __m256i *)(weights + 16 * side));
        auto first = _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16)), second = _mm256_castsi256_ps(_mm256_and_si256(pairs, upper));
        for (int r = 0; r < ROWS; r++) {
          __m256i pair = _mm256_set1_epi32(*(const int32_t *)(x + r * k + i));
          sums[r][side] = _mm256_fmadd_ps(_mm256_castsi256_ps(_mm256_slli_epi32(pair, 16)), first, sums[r][side]);
          sums[r][side] = _mm256_fmadd_ps(_mm256_castsi256_ps(_mm256_and_si256(pair, upper)), second, sums[r][side]);
        }
      }
    }
    for (int r = 0; r < ROWS; r++)
      for (int side = 0; side < 2; side++) _mm256_storeu_ps(y + (int64_t)r * n + column + 8 * side, sums[r][side]);
  }
}

template <int ROWS> void int8_tile(const uint8_t *x, const int8_t *panel, int32_t *y, int n, int k) {
  for (int column = 0; column < PANEL; column += 16) {
    __m256i sums[ROWS][2] = {};
    const int8_t *weights = panel + 4 * column;
    for (int i = 0; i < k; i += 4, weights += 4 * PANEL) {
      _mm_prefetch((const char *)(weights + 12 * 4 * PANEL), _MM_HINT_T0);
      for (int side = 0; side < 2; side++) {
        __m256i fours = _mm256_loadu_si256((const __m256i *)(weights + 32 * side));
        for (int r = 0; r < ROWS; r++) {
          __m256i four = _mm256_set1_epi32(*(const int32_t *)(x + r * k + i));
          __m256i twos = _mm256_madd_epi16(_mm256_maddubs_epi16(four, fours), _mm256_set1_epi16(1));
          sums[r][side] = _mm256_add_epi32(sums[r][side], twos);
        }
      }
    }
    for (int r = 0; r < ROWS; r++)
      for (int side = 0; side < 2; side++)
        _mm256_storeu_si256((__m256i *)(y + (int64_t)r * n + column + 8 * side), sums[r][side]);
  }
}
#endif

// Rows left over by tall tiles are processed in tiles of eight, four and one.
template <int TALL, class Rows> void by_tiles(int m, Rows rows) {
  int row = 0;
  for (; row + TALL <= m; row += TALL) rows(row, std::integral_constant<int, TALL>());
  if constexpr (TALL > 8)
    for (; row + 8 <= m; row += 8) rows(row, std::integral_constant<int, 8>());
  if constexpr (TALL > 4)
    for (; row + 4 <= m; row += 4) rows(row, std::integral_constant<int, 4>());
  for (; row < m; row++) rows(row, std::integral_constant<int, 1>());
}

}  // namespace

extern "C" void plain_bf16(const uint16_t *x, const uint16_t *packed, float *y, int m, int n, int k) {
#pragma omp parallel for schedule(static)
  for (int column = 0; column < n; column += PANEL)
    by_tiles<TALL_BF16>(m, [&](int row, auto height) {
      bf16_tile<height>(x + (int64_t)row * k, packed + (int64_t)column * k, y + (int64_t)row * n + column, n, k);
    });
}

extern "C" void plain_int8(const uint8_t *x, const int8_t *packed, int32_t *y, int m, int n, int k) {
#pragma omp parallel for schedule(static)
  for (int column = 0; column < n; column += PANEL)
    by_tiles<TALL_INT8>(m, [&](int row, auto height) {
      int8_tile<height>(x + (int64_t)row * k, packed + (int64_t)column * k, y + (int64_t)row * n + column, n, k);
    });
}
