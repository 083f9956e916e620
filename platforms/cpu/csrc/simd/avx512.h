// AVX-512 (F, BW, VL, DQ): 16 floats, with the BF16 extension if the compiler enables it.
#pragma once
#include <immintrin.h>

#include <cstdint>
#include <cstring>

namespace VARIANT::simd {

constexpr int W = 16;             // floats in a vector
constexpr int ROWS = 12;          // rows of a tile whose sums fit in registers next to two vectors of weights
constexpr bool READS_AHEAD = true;  // see weights/fetch.h
constexpr int AHEAD = 64;         // steps of a product between fetching weights and reading them
using Float = __m512;
using Pairs = __m512i;            // W pairs of bf16
using Whole = __m512i;            // W 32-bit integers
using Quads = __m512i;            // W groups of four bytes
using Shorts = __m512i;           // W pairs of 16-bit integers

inline Float zero() { return _mm512_setzero_ps(); }
inline Float set(float x) { return _mm512_set1_ps(x); }
inline Float load(const float *p) { return _mm512_loadu_ps(p); }
inline void store(float *p, Float x) { _mm512_storeu_ps(p, x); }
inline Float add(Float a, Float b) { return _mm512_add_ps(a, b); }
inline Float sub(Float a, Float b) { return _mm512_sub_ps(a, b); }
inline Float mul(Float a, Float b) { return _mm512_mul_ps(a, b); }
inline Float div(Float a, Float b) { return _mm512_div_ps(a, b); }
inline Float max(Float a, Float b) { return _mm512_max_ps(a, b); }
inline Float min(Float a, Float b) { return _mm512_min_ps(a, b); }
inline Float fma(Float a, Float b, Float c) { return _mm512_fmadd_ps(a, b, c); }
inline float sum(Float x) { return _mm512_reduce_add_ps(x); }
inline float largest(Float x) { return _mm512_reduce_max_ps(x); }
inline Float round(Float x) { return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
// x * 2^n, for an integer n
inline Float scale_by_power(Float x, Float n) { return _mm512_scalef_ps(x, n); }

inline Float load_bf16(const uint16_t *p) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p)), 16));
}
inline void store_bf16(uint16_t *p, Float x) {
#ifdef __AVX512BF16__
  __m256bh rounded = _mm512_cvtneps_pbh(x);
  std::memcpy(p, &rounded, sizeof rounded);
#else
  __m512i bits = _mm512_castps_si512(x);
  __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  __m512i rounded = _mm512_srli_epi32(_mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff))), 16);
  rounded = _mm512_mask_mov_epi32(rounded, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), _mm512_set1_epi32(0x7fc0));
  _mm256_storeu_si256((__m256i *)p, _mm512_cvtepi32_epi16(rounded));
#endif
}

#ifdef __AVX512BF16__
// Stores a line, which p is the beginning of, past the caches. Other threads see it after end_of_far_stores().
inline void store_bf16_far(uint16_t *p, Float low, Float high) {
  _mm512_stream_si512((__m512i *)p, (__m512i)_mm512_cvtne2ps_pbh(high, low));
}
inline void end_of_far_stores() { _mm_sfence(); }
#endif

inline Pairs load_pairs(const uint16_t *p) { return _mm512_loadu_si512(p); }
#ifdef __AVX512BF16__
inline Pairs set_pair(uint32_t pair) { return _mm512_set1_epi32((int)pair); }
// sum + a.first * b.first + a.second * b.second, by lane
inline Float dot(Float sum, Pairs a, Pairs b) { return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b); }
// Clears the second element of each pair, whatever it was.
inline Pairs only_first(Pairs x) { return _mm512_and_si512(x, _mm512_set1_epi32(0xffff)); }
#else
inline Float first_of(Pairs x) { return _mm512_castsi512_ps(_mm512_slli_epi32(x, 16)); }
inline Float second_of(Pairs x) { return _mm512_castsi512_ps(_mm512_and_si512(x, _mm512_set1_epi32((int)0xffff0000))); }
#endif

inline Whole set_whole(int32_t x) { return _mm512_set1_epi32(x); }
inline Float to_float(Whole x) { return _mm512_cvtepi32_ps(x); }
inline Whole as_whole(Float x) { return _mm512_castps_si512(x); }  // the same bits
inline Whole lanes() { return _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0); }
inline Whole load(const int32_t *p) { return _mm512_loadu_si512(p); }
inline void store(int32_t *p, Whole x) { _mm512_storeu_si512(p, x); }
inline Whole add(Whole a, Whole b) { return _mm512_add_epi32(a, b); }
inline Whole sub(Whole a, Whole b) { return _mm512_sub_epi32(a, b); }
inline Whole mul(Whole a, Whole b) { return _mm512_mullo_epi32(a, b); }  // the low half
inline Whole exclusive_or(Whole a, Whole b) { return _mm512_xor_si512(a, b); }
template <int N> inline Whole shifted(Whole x) { return _mm512_srli_epi32(x, N); }  // logical shift right
// Whether any element is larger than the bound, or NaN.
inline bool any_above(Float x, Float bound) { return _mm512_cmp_ps_mask(x, bound, _CMP_NLE_UQ) != 0; }
inline int count_above(Float x, Float bound) { return __builtin_popcount(_mm512_cmp_ps_mask(x, bound, _CMP_GT_OQ)); }
// By lane: `yes` if x is larger than the bound, otherwise `no`
inline Float choose(Float x, Float bound, Float yes, Float no) {
  return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(x, bound, _CMP_GT_OQ), no, yes);
}
inline Quads load_quads(const uint8_t *p) { return _mm512_loadu_si512(p); }
inline void store_quads(uint8_t *p, Quads x) { _mm512_storeu_si512(p, x); }
inline Quads set_quad(uint32_t four) { return _mm512_set1_epi32((int)four); }
inline Quads low_halves(Quads x) { return _mm512_and_si512(x, _mm512_set1_epi8(15)); }
inline Quads high_halves(Quads x) { return _mm512_and_si512(_mm512_srli_epi16(x, 4), _mm512_set1_epi8(15)); }
// x, of whose bytes some low or high bits are used: others may hold those of other bytes.
inline Quads bits_down(Quads x, int n) { return _mm512_srl_epi32(x, _mm_cvtsi32_si128(n)); }
template <int N> inline Quads bits_up(Quads x) { return _mm512_slli_epi32(x, N); }
// Bytes of `low` with the bits of `high` that the mask names.
template <uint8_t MASK> inline Quads joined(Quads low, Quads high) {
  return _mm512_or_si512(low, _mm512_and_si512(high, _mm512_set1_epi8(MASK)));
}
using Table = Quads;  // of 16 bytes
inline Table load_table(const uint8_t *p) { return _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)p)); }
inline Quads look_up(Table table, Quads numbers) { return _mm512_shuffle_epi8(table, numbers); }
inline Float load_bytes(const uint8_t *p) { return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p))); }
inline Float load_half(const uint16_t *p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p)); }
// Products of codes with int8, of eight elements of each output: the first four, and the others. NARROW: codes have six bits at
// most. LESS: what lessened() takes from codes, so that they can be multiplied. For integers, GCC copies the sums if they use
// VNNI, and otherwise adds products to each other first; either way it needs more registers than there are. Assembly prevents that.
#ifdef __AVX512VNNI__
// sum + the products of four unsigned bytes with four signed ones, by lane
inline Whole dot(Whole sum, Quads bytes, Quads with_sign) {
  asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(bytes), "v"(with_sign));
  return sum;
}
template <bool NARROW> constexpr int32_t LESS = 0;
template <bool NARROW> inline Quads lessened(Quads codes) { return codes; }
template <bool NARROW> inline Whole dot_codes(Whole sum, Quads front, Quads back, Quads x_front, Quads x_back) {
  return dot(dot(sum, front, x_front), back, x_back);
}
#else
template <bool NARROW> constexpr int32_t LESS = NARROW ? 0 : 128;
template <bool NARROW> inline Quads lessened(Quads codes) {
  return NARROW ? codes : _mm512_xor_si512(codes, _mm512_set1_epi8((char)128));
}
// Sums of two products in 16 bits each. A number with sign is multiplied by its magnitude, and the other takes the sign.
inline __m512i by_two(Quads a, Quads b) {
  return _mm512_maddubs_epi16(_mm512_abs_epi8(a), _mm512_mask_sub_epi8(b, _mm512_movepi8_mask(a), _mm512_setzero_si512(), b));
}
inline Whole add_by_two(Whole sum, __m512i shorts) {
  asm("vpaddd %1, %0, %0" : "+v"(sum) : "v"(_mm512_madd_epi16(shorts, _mm512_set1_epi16(1))));
  return sum;
}
template <bool NARROW> inline Whole dot_codes(Whole sum, Quads front, Quads back, Quads x_front, Quads x_back) {
  if constexpr (NARROW)
    return add_by_two(sum, _mm512_add_epi16(_mm512_maddubs_epi16(front, x_front), _mm512_maddubs_epi16(back, x_back)));
  else
    return add_by_two(add_by_two(sum, by_two(front, x_front)), by_two(back, x_back));
}
#endif
inline Shorts set_shorts(uint32_t pair) { return _mm512_set1_epi32((int)pair); }
// Widens W pairs of 8-bit integers to 16 bits.
inline Shorts widen_pairs(const int8_t *p) { return _mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i *)p)); }
// sum + a.first * b.first + a.second * b.second, by lane, for 16-bit integers
inline Whole dot_whole(Whole sum, Shorts a, Shorts b) {
#ifdef __AVX512VNNI__
  asm("vpdpwssd %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
  return sum;
#else
  asm("vpaddd %1, %0, %0" : "+v"(sum) : "v"(_mm512_madd_epi16(a, b)));
  return sum;
#endif
}
// Rounds to integers; x must be scaled to -32767 to 32767.
inline void store_int16(int16_t *p, Float x) { _mm256_storeu_si256((__m256i *)p, _mm512_cvtsepi32_epi16(_mm512_cvtps_epi32(x))); }
// x, but 0 wherever `by` is 0, even if x is NaN there
inline Float only_where(Float by, Float x) {
  return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(by, _mm512_setzero_ps(), _CMP_NEQ_UQ), x);
}
// Rounds to integers; x must be scaled to -127 to 127.
inline void store_int8(int8_t *p, Float x) { _mm_storeu_si128((__m128i *)p, _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(x))); }
inline Float magnitude(Float x) { return _mm512_abs_ps(x); }
inline void prefetch(const void *p) { _mm_prefetch((const char *)p, _MM_HINT_T0); }
inline void prefetch_ahead(const void *p) { _mm_prefetch((const char *)p, _MM_HINT_T1); }  // not into the L1 cache

}  // namespace VARIANT::simd
