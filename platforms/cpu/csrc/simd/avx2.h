// AVX2 with FMA: 8 floats.
#pragma once
#include <immintrin.h>

#include <cstdint>

namespace VARIANT::simd {

constexpr int W = 8;
constexpr int ROWS = 6;
constexpr bool READS_AHEAD = false;
constexpr int AHEAD = 10;
using Float = __m256;
using Pairs = __m256i;
using Whole = __m256i;
using Quads = __m256i;
using Shorts = __m256i;

inline Float zero() { return _mm256_setzero_ps(); }
inline Float set(float x) { return _mm256_set1_ps(x); }
inline Float load(const float *p) { return _mm256_loadu_ps(p); }
inline void store(float *p, Float x) { _mm256_storeu_ps(p, x); }
inline Float add(Float a, Float b) { return _mm256_add_ps(a, b); }
inline Float sub(Float a, Float b) { return _mm256_sub_ps(a, b); }
inline Float mul(Float a, Float b) { return _mm256_mul_ps(a, b); }
inline Float div(Float a, Float b) { return _mm256_div_ps(a, b); }
inline Float max(Float a, Float b) { return _mm256_max_ps(a, b); }
inline Float min(Float a, Float b) { return _mm256_min_ps(a, b); }
inline Float fma(Float a, Float b, Float c) { return _mm256_fmadd_ps(a, b, c); }
inline float sum(Float x) {
  __m128 half = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  half = _mm_add_ps(half, _mm_movehl_ps(half, half));
  return _mm_cvtss_f32(_mm_add_ss(half, _mm_movehdup_ps(half)));
}
inline float largest(Float x) {
  __m128 half = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  half = _mm_max_ps(half, _mm_movehl_ps(half, half));
  return _mm_cvtss_f32(_mm_max_ss(half, _mm_movehdup_ps(half)));
}
inline Float round(Float x) { return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
inline Float scale_by_power(Float x, Float n) {
  __m256i exponent = _mm256_max_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(-127));  // which yields 0
  __m256i power = _mm256_slli_epi32(_mm256_add_epi32(exponent, _mm256_set1_epi32(127)), 23);
  return _mm256_mul_ps(x, _mm256_castsi256_ps(power));
}

inline Float load_bf16(const uint16_t *p) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p)), 16));
}
inline void store_bf16(uint16_t *p, Float x) {
  __m256i bits = _mm256_castps_si256(x);
  __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff))), 16);
  __m256i unordered = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
  rounded = _mm256_blendv_epi8(rounded, _mm256_set1_epi32(0x7fc0), unordered);
  __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(rounded, rounded), 0x08);
  _mm_storeu_si128((__m128i *)p, _mm256_castsi256_si128(packed));
}

inline Pairs load_pairs(const uint16_t *p) { return _mm256_loadu_si256((const __m256i *)p); }
inline Float first_of(Pairs x) { return _mm256_castsi256_ps(_mm256_slli_epi32(x, 16)); }
inline Float second_of(Pairs x) { return _mm256_castsi256_ps(_mm256_and_si256(x, _mm256_set1_epi32((int)0xffff0000))); }

inline Whole set_whole(int32_t x) { return _mm256_set1_epi32(x); }
inline Float to_float(Whole x) { return _mm256_cvtepi32_ps(x); }
inline Whole as_whole(Float x) { return _mm256_castps_si256(x); }
inline Whole lanes() { return _mm256_set_epi32(7, 6, 5, 4, 3, 2, 1, 0); }
inline Whole load(const int32_t *p) { return _mm256_loadu_si256((const __m256i *)p); }
inline void store(int32_t *p, Whole x) { _mm256_storeu_si256((__m256i *)p, x); }
inline Whole add(Whole a, Whole b) { return _mm256_add_epi32(a, b); }
inline Whole sub(Whole a, Whole b) { return _mm256_sub_epi32(a, b); }
inline Whole mul(Whole a, Whole b) { return _mm256_mullo_epi32(a, b); }
inline Whole exclusive_or(Whole a, Whole b) { return _mm256_xor_si256(a, b); }
template <int N> inline Whole shifted(Whole x) { return _mm256_srli_epi32(x, N); }
inline bool any_above(Float x, Float bound) { return _mm256_movemask_ps(_mm256_cmp_ps(x, bound, _CMP_NLE_UQ)) != 0; }
inline int count_above(Float x, Float bound) {
  return __builtin_popcount(_mm256_movemask_ps(_mm256_cmp_ps(x, bound, _CMP_GT_OQ)));
}
inline Float choose(Float x, Float bound, Float yes, Float no) {
  return _mm256_blendv_ps(no, yes, _mm256_cmp_ps(x, bound, _CMP_GT_OQ));
}
inline Quads load_quads(const uint8_t *p) { return _mm256_loadu_si256((const __m256i *)p); }
inline void store_quads(uint8_t *p, Quads x) { _mm256_storeu_si256((__m256i *)p, x); }
inline Quads set_quad(uint32_t four) { return _mm256_set1_epi32((int)four); }
inline Quads low_halves(Quads x) { return _mm256_and_si256(x, _mm256_set1_epi8(15)); }
inline Quads high_halves(Quads x) { return _mm256_and_si256(_mm256_srli_epi16(x, 4), _mm256_set1_epi8(15)); }
inline Quads bits_down(Quads x, int n) { return _mm256_srl_epi32(x, _mm_cvtsi32_si128(n)); }
template <int N> inline Quads bits_up(Quads x) { return _mm256_slli_epi32(x, N); }
template <uint8_t MASK> inline Quads joined(Quads low, Quads high) {
  return _mm256_or_si256(low, _mm256_and_si256(high, _mm256_set1_epi8(MASK)));
}
using Table = Quads;
inline Table load_table(const uint8_t *p) { return _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)p)); }
inline Quads look_up(Table table, Quads numbers) { return _mm256_shuffle_epi8(table, numbers); }
inline Float load_bytes(const uint8_t *p) { return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p))); }
inline Float load_half(const uint16_t *p) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)); }
template <bool NARROW> constexpr int32_t LESS = NARROW ? 0 : 128;
template <bool NARROW> inline Quads lessened(Quads codes) {
  return NARROW ? codes : _mm256_xor_si256(codes, _mm256_set1_epi8((char)128));
}
// Sums of two products in 16 bits each. A number with sign is multiplied by its magnitude, and the other takes the sign.
inline __m256i by_two(Quads a, Quads b) { return _mm256_maddubs_epi16(_mm256_abs_epi8(a), _mm256_sign_epi8(b, a)); }
// For integers, GCC would first add products to each other and then need more registers than there are. Assembly prevents that.
inline Whole add_by_two(Whole sum, __m256i shorts) {
  asm("vpaddd %1, %0, %0" : "+x"(sum) : "x"(_mm256_madd_epi16(shorts, _mm256_set1_epi16(1))));
  return sum;
}
template <bool NARROW> inline Whole dot_codes(Whole sum, Quads front, Quads back, Quads x_front, Quads x_back) {
  if constexpr (NARROW)
    return add_by_two(sum, _mm256_add_epi16(_mm256_maddubs_epi16(front, x_front), _mm256_maddubs_epi16(back, x_back)));
  else
    return add_by_two(add_by_two(sum, by_two(front, x_front)), by_two(back, x_back));
}
inline Shorts set_shorts(uint32_t pair) { return _mm256_set1_epi32((int)pair); }
inline Shorts widen_pairs(const int8_t *p) { return _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)p)); }
inline Whole dot_whole(Whole sum, Shorts a, Shorts b) {
  asm("vpaddd %1, %0, %0" : "+x"(sum) : "x"(_mm256_madd_epi16(a, b)));
  return sum;
}
inline void store_int16(int16_t *p, Float x) {
  __m256i whole = _mm256_cvtps_epi32(x);
  _mm_storeu_si128((__m128i *)p, _mm_packs_epi32(_mm256_castsi256_si128(whole), _mm256_extracti128_si256(whole, 1)));
}
inline Float only_where(Float by, Float x) { return _mm256_and_ps(x, _mm256_cmp_ps(by, _mm256_setzero_ps(), _CMP_NEQ_UQ)); }
inline void store_int8(int8_t *p, Float x) {
  __m256i whole = _mm256_cvtps_epi32(x);
  __m128i half = _mm_packs_epi32(_mm256_castsi256_si128(whole), _mm256_extracti128_si256(whole, 1));
  _mm_storel_epi64((__m128i *)p, _mm_packs_epi16(half, half));
}
inline Float magnitude(Float x) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x); }
inline void prefetch(const void *p) { _mm_prefetch((const char *)p, _MM_HINT_T0); }
inline void prefetch_ahead(const void *p) { _mm_prefetch((const char *)p, _MM_HINT_T1); }  // not into the L1 cache

}  // namespace VARIANT::simd
