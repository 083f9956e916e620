// The instructions of AVX-512 (and, in tiles.h, of AMX) that the kernels use, each spelt out lane by lane as Intel's manual
// defines it (Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2), for a processor that has none of them:
// it shows what the kernels compute there, not how fast. Registers are 64 bytes, which the compiler makes of what there is.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

typedef float __m512 __attribute__((vector_size(64), may_alias));
typedef int32_t __m512i __attribute__((vector_size(64), may_alias));
typedef int16_t __m512bh __attribute__((vector_size(64), may_alias));
typedef int32_t __m256i __attribute__((vector_size(32), may_alias));
typedef int16_t __m256bh __attribute__((vector_size(32), may_alias));
typedef int32_t __m128i __attribute__((vector_size(16), may_alias));
typedef uint32_t __m512u __attribute__((vector_size(64), may_alias));
typedef uint16_t __mmask16;
typedef uint64_t __mmask64;

enum { _MM_FROUND_TO_NEAREST_INT = 0, _MM_FROUND_NO_EXC = 8 };
enum { _CMP_UNORD_Q = 3, _CMP_NEQ_UQ = 4, _CMP_NLE_UQ = 6, _CMP_GT_OQ = 30 };
enum { _MM_HINT_T0 = 3, _MM_HINT_T1 = 2 };

namespace emulated {

template <class To, class From> inline To as(From from) {
  static_assert(sizeof(To) == sizeof(From), "bits are kept");
  To to;
  std::memcpy(&to, &from, sizeof to);
  return to;
}
template <class To> inline To read(const void *p) {
  To to;
  std::memcpy(&to, p, sizeof to);
  return to;
}
// A register as numbers: `of` calls f with each lane's number.
template <class Element, int N> struct Lanes {
  Element at[N];
  template <class F> static Lanes of(F f) {
    Lanes made;
    for (int i = 0; i < N; i++) made.at[i] = f(i);
    return made;
  }
};
using Floats = Lanes<float, 16>;
using Shorts = Lanes<int16_t, 32>;
using Bytes = Lanes<int8_t, 64>;
using UnsignedShorts = Lanes<uint16_t, 32>;
using UnsignedBytes = Lanes<uint8_t, 64>;
using Unsigned = Lanes<uint32_t, 16>;
using Signed = Lanes<int32_t, 16>;

inline int16_t saturated(int32_t x) { return (int16_t)(x > 32767 ? 32767 : x < -32768 ? -32768 : x); }
// The instructions for bfloat16 take a denormal float for zero.
inline float flushed(float x) { return std::fpclassify(x) == FP_SUBNORMAL ? std::copysign(0.0f, x) : x; }
inline uint16_t rounded(float x) {
  uint32_t bits = as<uint32_t>(flushed(x));
  if (std::isnan(x)) return (uint16_t)(bits >> 16 | 0x40);
  return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
inline float widened(uint16_t x) { return flushed(as<float>((uint32_t)x << 16)); }

}  // namespace emulated

inline __m512 _mm512_setzero_ps() { return __m512{}; }
inline __m512i _mm512_setzero_si512() { return __m512i{}; }
inline __m512 _mm512_set1_ps(float x) { return __m512{} + x; }
inline __m512i _mm512_set1_epi32(int x) { return __m512i{} + x; }
inline __m512i _mm512_set1_epi16(short x) { return emulated::as<__m512i>(emulated::Shorts::of([=](int) { return x; })); }
inline __m512i _mm512_set1_epi8(char x) { return emulated::as<__m512i>(emulated::Bytes::of([=](int) { return x; })); }
inline __m512i _mm512_set_epi32(int p, int o, int n, int m, int l, int k, int j, int i, int h, int g, int f, int e, int d,
                                int c, int b, int a) {
  return __m512i{a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p};
}

inline __m512 _mm512_loadu_ps(const void *p) { return emulated::read<__m512>(p); }
inline __m128i _mm_loadu_si128(const __m128i *p) { return emulated::read<__m128i>(p); }
inline __m128i _mm_cvtsi32_si128(int x) { return __m128i{x, 0, 0, 0}; }
inline __m512i _mm512_broadcast_i32x4(__m128i x) {
  return emulated::as<__m512i>(emulated::Signed::of([=](int i) { return x[i % 4]; }));
}
inline __m512i _mm512_loadu_si512(const void *p) { return emulated::read<__m512i>(p); }
inline __m256i _mm256_loadu_si256(const __m256i *p) { return emulated::read<__m256i>(p); }
inline void _mm512_storeu_ps(void *p, __m512 x) { std::memcpy(p, &x, sizeof x); }
inline void _mm512_storeu_si512(void *p, __m512i x) { std::memcpy(p, &x, sizeof x); }
// Only where in the caches the memory goes is another.
inline void _mm512_stream_si512(__m512i *p, __m512i x) { _mm512_storeu_si512(p, x); }
inline void _mm_sfence() {}
inline void _mm256_storeu_si256(__m256i *p, __m256i x) { std::memcpy(p, &x, sizeof x); }
inline void _mm_storeu_si128(__m128i *p, __m128i x) { std::memcpy(p, &x, sizeof x); }
template <class P> inline void _mm_prefetch(const P *p, int) { __builtin_prefetch(p); }

inline __m512 _mm512_add_ps(__m512 a, __m512 b) { return a + b; }
inline __m512 _mm512_sub_ps(__m512 a, __m512 b) { return a - b; }
inline __m512 _mm512_mul_ps(__m512 a, __m512 b) { return a * b; }
inline __m512 _mm512_div_ps(__m512 a, __m512 b) { return a / b; }
inline __m512 _mm512_max_ps(__m512 a, __m512 b) { return a > b ? a : b; }  // b where one is none
inline __m512 _mm512_min_ps(__m512 a, __m512 b) { return a < b ? a : b; }
inline __m512 _mm512_fmadd_ps(__m512 a, __m512 b, __m512 c) {
  for (int i = 0; i < 16; i++) c[i] = std::fma(a[i], b[i], c[i]);
  return c;
}
inline __m512 _mm512_abs_ps(__m512 x) { return (__m512)((__m512i)x & 0x7fffffff); }
inline __m512 _mm512_roundscale_ps(__m512 x, int) {
  for (int i = 0; i < 16; i++) x[i] = std::nearbyint(x[i]);
  return x;
}
inline __m512 _mm512_scalef_ps(__m512 x, __m512 n) {
  for (int i = 0; i < 16; i++)
    x[i] = std::isnan(n[i]) ? n[i] : std::ldexp(x[i], (int)std::fmin(std::fmax(std::floor(n[i]), -999.0f), 999.0f));
  return x;
}
inline float _mm512_reduce_add_ps(__m512 x) {
  for (int half = 8; half > 0; half /= 2)
    for (int i = 0; i < half; i++) x[i] += x[i + half];
  return x[0];
}
inline float _mm512_reduce_max_ps(__m512 x) {
  for (int half = 8; half > 0; half /= 2)
    for (int i = 0; i < half; i++) x[i] = x[i] > x[i + half] ? x[i] : x[i + half];
  return x[0];
}

inline __m512i _mm512_castps_si512(__m512 x) { return (__m512i)x; }
inline __m512 _mm512_castsi512_ps(__m512i x) { return (__m512)x; }
inline __m512 _mm512_cvtepi32_ps(__m512i x) { return __builtin_convertvector(x, __m512); }
inline __m512i _mm512_cvtps_epi32(__m512 x) {
  __m512i whole;
  for (int i = 0; i < 16; i++)
    whole[i] = x[i] >= -2147483648.0f && x[i] < 2147483648.0f ? (int32_t)std::nearbyint(x[i]) : INT32_MIN;
  return whole;
}
inline __m512i _mm512_cvtepu16_epi32(__m256i x) {
  auto of = emulated::as<emulated::Lanes<uint16_t, 16>>(x);
  return emulated::as<__m512i>(emulated::Unsigned::of([=](int i) { return of.at[i]; }));
}
inline __m512i _mm512_cvtepu8_epi32(__m128i x) {
  auto of = emulated::as<emulated::Lanes<uint8_t, 16>>(x);
  return emulated::as<__m512i>(emulated::Signed::of([=](int i) { return of.at[i]; }));
}
inline __m512 _mm512_cvtph_ps(__m256i x) {
  auto of = emulated::as<emulated::Lanes<_Float16, 16>>(x);
  return emulated::as<__m512>(emulated::Floats::of([=](int i) { return (float)of.at[i]; }));
}
inline __m512i _mm512_cvtepi8_epi16(__m256i x) {
  auto of = emulated::as<emulated::Lanes<int8_t, 32>>(x);
  return emulated::as<__m512i>(emulated::Shorts::of([=](int i) { return of.at[i]; }));
}
inline __m256i _mm512_cvtepi32_epi16(__m512i x) {
  return emulated::as<__m256i>(emulated::Lanes<int16_t, 16>::of([=](int i) { return (int16_t)x[i]; }));
}
inline __m256i _mm512_cvtsepi32_epi16(__m512i x) {
  return emulated::as<__m256i>(emulated::Lanes<int16_t, 16>::of([=](int i) { return emulated::saturated(x[i]); }));
}
inline __m128i _mm512_cvtepi32_epi8(__m512i x) {
  return emulated::as<__m128i>(emulated::Lanes<int8_t, 16>::of([=](int i) { return (int8_t)x[i]; }));
}

inline __m512i _mm512_add_epi32(__m512i a, __m512i b) { return (__m512i)((__m512u)a + (__m512u)b); }
inline __m512i _mm512_sub_epi32(__m512i a, __m512i b) { return (__m512i)((__m512u)a - (__m512u)b); }
inline __m512i _mm512_mullo_epi32(__m512i a, __m512i b) { return (__m512i)((__m512u)a * (__m512u)b); }
inline __m512i _mm512_and_si512(__m512i a, __m512i b) { return a & b; }
inline __m512i _mm512_or_si512(__m512i a, __m512i b) { return a | b; }
inline __m512i _mm512_xor_si512(__m512i a, __m512i b) { return a ^ b; }
inline __m512i _mm512_slli_epi32(__m512i x, unsigned n) { return (__m512i)((__m512u)x << n); }
inline __m512i _mm512_srl_epi32(__m512i x, __m128i n) { return (__m512i)((__m512u)x >> (unsigned)n[0]); }
inline __m512i _mm512_shuffle_epi8(__m512i table, __m512i numbers) {  // the high bit, which makes zeros, is not used here
  auto of = emulated::as<emulated::UnsignedBytes>(table), by = emulated::as<emulated::UnsignedBytes>(numbers);
  return emulated::as<__m512i>(emulated::UnsignedBytes::of([&](int i) { return of.at[i / 16 * 16 + (by.at[i] & 15)]; }));
}
inline __m512i _mm512_srli_epi32(__m512i x, unsigned n) { return (__m512i)((__m512u)x >> n); }
inline __m512i _mm512_srli_epi16(__m512i x, unsigned n) {
  auto of = emulated::as<emulated::UnsignedShorts>(x);
  return emulated::as<__m512i>(emulated::UnsignedShorts::of([=](int i) { return (uint16_t)(of.at[i] >> n); }));
}

inline __mmask16 _mm512_cmp_ps_mask(__m512 a, __m512 b, int how) {
  unsigned mask = 0;
  for (int i = 0; i < 16; i++) {
    bool none = std::isnan(a[i]) || std::isnan(b[i]);
    bool is = how == _CMP_UNORD_Q   ? none
              : how == _CMP_NEQ_UQ  ? none || a[i] != b[i]
              : how == _CMP_NLE_UQ  ? none || a[i] > b[i]
                                    : !none && a[i] > b[i];
    mask |= (unsigned)is << i;
  }
  return (__mmask16)mask;
}
inline __m512 _mm512_mask_blend_ps(__mmask16 mask, __m512 no, __m512 yes) {
  for (int i = 0; i < 16; i++) no[i] = mask >> i & 1 ? yes[i] : no[i];
  return no;
}
inline __m512 _mm512_maskz_mov_ps(__mmask16 mask, __m512 x) { return _mm512_mask_blend_ps(mask, __m512{}, x); }
inline __m512i _mm512_mask_mov_epi32(__m512i no, __mmask16 mask, __m512i yes) {
  return (__m512i)_mm512_mask_blend_ps(mask, (__m512)no, (__m512)yes);
}

inline __m512i _mm512_madd_epi16(__m512i a, __m512i b) {
  auto of = emulated::as<emulated::Shorts>(a), by = emulated::as<emulated::Shorts>(b);
  return emulated::as<__m512i>(emulated::Unsigned::of([&](int i) {
    return (uint32_t)(of.at[2 * i] * by.at[2 * i]) + (uint32_t)(of.at[2 * i + 1] * by.at[2 * i + 1]);
  }));
}
inline __m512i _mm512_add_epi16(__m512i a, __m512i b) {
  auto of = emulated::as<emulated::UnsignedShorts>(a), by = emulated::as<emulated::UnsignedShorts>(b);
  return emulated::as<__m512i>(emulated::UnsignedShorts::of([&](int i) { return (uint16_t)(of.at[i] + by.at[i]); }));
}
inline __m512i _mm512_abs_epi8(__m512i x) {
  auto of = emulated::as<emulated::Bytes>(x);
  return emulated::as<__m512i>(emulated::UnsignedBytes::of([&](int i) { return (uint8_t)(of.at[i] < 0 ? -of.at[i] : of.at[i]); }));
}
inline __mmask64 _mm512_movepi8_mask(__m512i x) {
  auto of = emulated::as<emulated::Bytes>(x);
  __mmask64 mask = 0;
  for (int i = 0; i < 64; i++) mask |= (__mmask64)(of.at[i] < 0) << i;
  return mask;
}
inline __m512i _mm512_mask_sub_epi8(__m512i no, __mmask64 mask, __m512i a, __m512i b) {
  auto other = emulated::as<emulated::Bytes>(no), of = emulated::as<emulated::Bytes>(a), by = emulated::as<emulated::Bytes>(b);
  return emulated::as<__m512i>(
      emulated::Bytes::of([&](int i) { return mask >> i & 1 ? (int8_t)(of.at[i] - by.at[i]) : other.at[i]; }));
}
inline __m512i _mm512_maddubs_epi16(__m512i a, __m512i b) {
  auto of = emulated::as<emulated::UnsignedBytes>(a);
  auto by = emulated::as<emulated::Bytes>(b);
  return emulated::as<__m512i>(emulated::Shorts::of([&](int i) {
    return emulated::saturated(of.at[2 * i] * by.at[2 * i] + of.at[2 * i + 1] * by.at[2 * i + 1]);
  }));
}

// AVX512_BF16: the second of each pair comes first, and each product is rounded with its sum.
inline __m512 _mm512_dpbf16_ps(__m512 sum, __m512bh a, __m512bh b) {
  for (int i = 0; i < 16; i++)
    for (int j = 2 * i + 1; j >= 2 * i; j--)
      sum[i] = std::fma(emulated::widened((uint16_t)a[j]), emulated::widened((uint16_t)b[j]), sum[i]);
  return sum;
}
inline __m256bh _mm512_cvtneps_pbh(__m512 x) {
  return emulated::as<__m256bh>(emulated::Lanes<uint16_t, 16>::of([=](int i) { return emulated::rounded(x[i]); }));
}
inline __m512bh _mm512_cvtne2ps_pbh(__m512 high, __m512 low) {
  return emulated::as<__m512bh>(
      emulated::UnsignedShorts::of([=](int i) { return emulated::rounded(i < 16 ? low[i] : high[i - 16]); }));
}

// What the kernels ask for by an instruction's name, as sum, then the other sources from the left to the right of Intel's
// order.
inline void vpaddd(__m512i &sum, __m512i x) { sum = _mm512_add_epi32(sum, x); }
inline void vpaddw(__m512i &sum, __m512i x) {
  auto of = emulated::as<emulated::UnsignedShorts>(sum), by = emulated::as<emulated::UnsignedShorts>(x);
  sum = emulated::as<__m512i>(emulated::UnsignedShorts::of([&](int i) { return (uint16_t)(of.at[i] + by.at[i]); }));
}
inline void vpdpwssd(__m512i &sum, __m512i a, __m512i b) { vpaddd(sum, _mm512_madd_epi16(a, b)); }
inline void vpdpbusd(__m512i &sum, __m512i bytes, __m512i with_sign) {
  auto of = emulated::as<emulated::UnsignedBytes>(bytes);
  auto by = emulated::as<emulated::Bytes>(with_sign);
  vpaddd(sum, emulated::as<__m512i>(emulated::Signed::of([&](int i) {
    int32_t four = 0;
    for (int j = 4 * i; j < 4 * i + 4; j++) four += of.at[j] * by.at[j];
    return four;
  })));
}

#include "tiles.h"
