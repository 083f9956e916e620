// The rate that a product of small batches can reach on this machine: one tile shape a type, weights packed ahead, each
// thread a stretch of the outputs. It has no scales, biases or tails, and writes float32 or int32: a ceiling, not a kernel.
#include <immintrin.h>

#include <cstdint>

namespace {

constexpr int PANEL = 32;

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

// The same of bytes: x without a sign, a panel [k / 4][32][4] with one.
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

}  // namespace

extern "C" void plain_bf16(const uint16_t *x, const uint16_t *packed, float *y, int m, int n, int k) {
#pragma omp parallel for schedule(static)
  for (int column = 0; column < n; column += PANEL) {
    const uint16_t *panel = packed + (int64_t)column * k;
    int row = 0;
    for (; row + 12 <= m; row += 12) bf16_tile<12>(x + (int64_t)row * k, panel, y + (int64_t)row * n + column, n, k);
    for (; row + 8 <= m; row += 8) bf16_tile<8>(x + (int64_t)row * k, panel, y + (int64_t)row * n + column, n, k);
    for (; row + 4 <= m; row += 4) bf16_tile<4>(x + (int64_t)row * k, panel, y + (int64_t)row * n + column, n, k);
    for (; row < m; row++) bf16_tile<1>(x + (int64_t)row * k, panel, y + (int64_t)row * n + column, n, k);
  }
}

extern "C" void plain_int8(const uint8_t *x, const int8_t *packed, int32_t *y, int m, int n, int k) {
#pragma omp parallel for schedule(static)
  for (int column = 0; column < n; column += PANEL) {
    const int8_t *panel = packed + (int64_t)column * k;
    int row = 0;
    for (; row + 8 <= m; row += 8) int8_tile<8>(x + (int64_t)row * k, panel, y + (int64_t)row * n + column, n, k);
    for (; row + 4 <= m; row += 4) int8_tile<4>(x + (int64_t)row * k, panel, y + (int64_t)row * n + column, n, k);
    for (; row < m; row++) int8_tile<1>(x + (int64_t)row * k, panel, y + (int64_t)row * n + column, n, k);
  }
}
