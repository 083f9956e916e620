// SVE: vectors of one register, of the length that the compiler is told (__ARM_FEATURE_SVE_BITS), so that they can be in arrays.
// With the extensions for bf16 and for matrix products of int8, if the compiler enables them.
#pragma once
#include <arm_sve.h>

#include <cstdint>
#include <cstring>

namespace VARIANT::simd {

#define FIXED __attribute__((arm_sve_vector_bits(__ARM_FEATURE_SVE_BITS)))
typedef svfloat32_t Float FIXED;
typedef svuint32_t Pairs FIXED;
typedef svint32_t Whole FIXED;
typedef svuint8_t Quads FIXED;
typedef svuint8_t TwoRows FIXED;
#undef FIXED
// The first elements of W pairs, and the second ones, as words: without SVE2 nothing multiplies shorter ones into them.
struct Shorts {
  Whole first, second;
};

constexpr int W = __ARM_FEATURE_SVE_BITS / 32;
constexpr int ROWS = 12;
constexpr bool READS_AHEAD = false;
constexpr int AHEAD = 16;

inline svbool_t all() { return svptrue_b32(); }
inline Float set(float x) { return svdup_n_f32(x); }
inline Float zero() { return set(0.0f); }
inline Float load(const float *p) { return svld1_f32(all(), p); }
inline void store(float *p, Float x) { svst1_f32(all(), p, x); }
inline Float add(Float a, Float b) { return svadd_f32_x(all(), a, b); }
inline Float sub(Float a, Float b) { return svsub_f32_x(all(), a, b); }
inline Float mul(Float a, Float b) { return svmul_f32_x(all(), a, b); }
inline Float div(Float a, Float b) { return svdiv_f32_x(all(), a, b); }
// A number, if one of both is NaN.
inline Float max(Float a, Float b) { return svmaxnm_f32_x(all(), a, b); }
inline Float min(Float a, Float b) { return svminnm_f32_x(all(), a, b); }
inline Float fma(Float a, Float b, Float c) { return svmla_f32_x(all(), c, a, b); }
inline float sum(Float x) { return svaddv_f32(all(), x); }
inline float largest(Float x) { return svmaxnmv_f32(all(), x); }
inline Float round(Float x) { return svrintn_f32_x(all(), x); }
inline Whole rounded(Float x) { return svcvt_s32_f32_x(all(), round(x)); }
inline Float scale_by_power(Float x, Float n) { return svscale_f32_x(all(), x, svcvt_s32_f32_x(all(), n)); }

inline Float load_bf16(const uint16_t *p) {
  return svreinterpret_f32_u32(svlsl_n_u32_x(all(), svld1uh_u32(all(), p), 16));
}
inline void store_bf16(uint16_t *p, Float x) {
#ifdef __ARM_FEATURE_BF16_VECTOR_ARITHMETIC
  svst1h_u32(all(), p, svreinterpret_u32_bf16(svcvt_bf16_f32_x(all(), x)));
#else
  svuint32_t bits = svreinterpret_u32_f32(x), odd = svand_n_u32_x(all(), svlsr_n_u32_x(all(), bits, 16), 1);
  bits = svlsr_n_u32_x(all(), svadd_u32_x(all(), bits, svadd_n_u32_x(all(), odd, 0x7fff)), 16);
  svst1h_u32(all(), p, svsel_u32(svcmpuo_f32(all(), x, x), svdup_n_u32(0x7fc0), bits));
#endif
}

inline Pairs load_pairs(const uint16_t *p) { return svld1_u32(all(), (const uint32_t *)p); }
#ifdef __ARM_FEATURE_BF16_VECTOR_ARITHMETIC
inline Pairs set_pair(uint32_t pair) { return svdup_n_u32(pair); }
inline Float dot(Float sum, Pairs a, Pairs b) {
  return svbfdot_f32(sum, svreinterpret_bf16_u32(a), svreinterpret_bf16_u32(b));
}
inline Pairs only_first(Pairs x) { return svand_n_u32_x(all(), x, 0xffff); }
#else
inline Float first_of(Pairs x) { return svreinterpret_f32_u32(svlsl_n_u32_x(all(), x, 16)); }
inline Float second_of(Pairs x) { return svreinterpret_f32_u32(svand_n_u32_x(all(), x, 0xffff0000)); }
#endif

inline Whole set_whole(int32_t x) { return svdup_n_s32(x); }
inline Float to_float(Whole x) { return svcvt_f32_s32_x(all(), x); }
inline Whole as_whole(Float x) { return svreinterpret_s32_f32(x); }
inline Whole lanes() { return svindex_s32(0, 1); }
inline Whole load(const int32_t *p) { return svld1_s32(all(), p); }
inline void store(int32_t *p, Whole x) { svst1_s32(all(), p, x); }
inline Whole add(Whole a, Whole b) { return svadd_s32_x(all(), a, b); }
inline Whole sub(Whole a, Whole b) { return svsub_s32_x(all(), a, b); }
inline Whole mul(Whole a, Whole b) { return svmul_s32_x(all(), a, b); }
inline Whole exclusive_or(Whole a, Whole b) { return sveor_s32_x(all(), a, b); }
template <int N> inline Whole shifted(Whole x) {
  return svreinterpret_s32_u32(svlsr_n_u32_x(all(), svreinterpret_u32_s32(x), N));
}
inline bool any_above(Float x, Float bound) {
  return svptest_any(all(), svnot_b_z(all(), svcmple_f32(all(), x, bound)));
}
inline int count_above(Float x, Float bound) { return (int)svcntp_b32(all(), svcmpgt_f32(all(), x, bound)); }
inline Float choose(Float x, Float bound, Float yes, Float no) { return svsel_f32(svcmpgt_f32(all(), x, bound), yes, no); }

inline Quads load_quads(const uint8_t *p) { return svld1_u8(svptrue_b8(), p); }
inline void store_quads(uint8_t *p, Quads x) { svst1_u8(svptrue_b8(), p, x); }
inline Quads set_quad(uint32_t four) { return svreinterpret_u8_u32(svdup_n_u32(four)); }
inline Quads low_halves(Quads x) { return svand_n_u8_x(svptrue_b8(), x, 15); }
inline Quads high_halves(Quads x) { return svlsr_n_u8_x(svptrue_b8(), x, 4); }
inline Quads bits_down(Quads x, int n) { return svlsr_n_u8_x(svptrue_b8(), x, (uint8_t)n); }
template <int N> inline Quads bits_up(Quads x) { return svlsl_n_u8_x(svptrue_b8(), x, N); }
template <uint8_t MASK> inline Quads joined(Quads low, Quads high) {
  return svorr_u8_x(svptrue_b8(), low, svand_n_u8_x(svptrue_b8(), high, MASK));
}
using Table = Quads;
inline Table load_table(const uint8_t *p) { return svld1rq_u8(svptrue_b8(), p); }
inline Quads look_up(Table table, Quads numbers) { return svtbl_u8(table, numbers); }
inline Float load_bytes(const uint8_t *p) { return svcvt_f32_u32_x(all(), svld1ub_u32(all(), p)); }
inline Float load_half(const uint16_t *p) { return svcvt_f32_f16_x(all(), svreinterpret_f16_u32(svld1uh_u32(all(), p))); }
// As with NEON: products of an unsigned with a signed number came later.
#ifdef __ARM_FEATURE_MATMUL_INT8
template <bool NARROW> constexpr int32_t LESS = 0;
template <bool NARROW> inline Quads lessened(Quads codes) { return codes; }
inline Whole dot(Whole sum, Quads codes, Quads with_sign) { return svusdot_s32(sum, codes, svreinterpret_s8_u8(with_sign)); }
#else
template <bool NARROW> constexpr int32_t LESS = NARROW ? 0 : 128;
template <bool NARROW> inline Quads lessened(Quads codes) { return NARROW ? codes : Quads(sveor_n_u8_x(svptrue_b8(), codes, 128)); }
inline Whole dot(Whole sum, Quads codes, Quads with_sign) {
  return svdot_s32(sum, svreinterpret_s8_u8(codes), svreinterpret_s8_u8(with_sign));
}
#endif
template <bool NARROW> inline Whole dot_codes(Whole sum, Quads front, Quads back, Quads x_front, Quads x_back) {
  return dot(dot(sum, front, x_front), back, x_back);
}

inline Shorts set_shorts(uint32_t pair) { return {set_whole((int16_t)(uint16_t)pair), set_whole((int32_t)pair >> 16)}; }
inline Shorts widen_pairs(const int8_t *p) {
  svint32_t pairs = svld1sh_s32(all(), (const int16_t *)p);
  return {svextb_s32_x(all(), pairs), svasr_n_s32_x(all(), pairs, 8)};
}
inline Whole dot_whole(Whole sum, Shorts a, Shorts b) {
  return svmla_s32_x(all(), svmla_s32_x(all(), sum, a.first, b.first), a.second, b.second);
}

#ifdef __ARM_FEATURE_MATMUL_INT8
// As with NEON.
template <class Words> inline Words lower_words(Words a, Words b) { return svzip1(a, b); }
template <class Words> inline Words upper_words(Words a, Words b) { return svzip2(a, b); }
inline Quads lower_words(Quads a, Quads b) {
  return svreinterpret_u8_u32(svzip1_u32(svreinterpret_u32_u8(a), svreinterpret_u32_u8(b)));
}
inline Quads upper_words(Quads a, Quads b) {
  return svreinterpret_u8_u32(svzip2_u32(svreinterpret_u32_u8(a), svreinterpret_u32_u8(b)));
}
template <class Words> inline Words even_words(Words a, Words b) { return svuzp1(a, b); }
template <class Words> inline Words odd_words(Words a, Words b) { return svuzp2(a, b); }
inline TwoRows set_rows(const void *one, const void *other) {
  uint64_t of[2];
  std::memcpy(of, one, 8), std::memcpy(of + 1, other, 8);
  return svreinterpret_u8_u64(svdupq_n_u64(of[0], of[1]));
}
inline Float multiply(Float sum, Pairs weights, TwoRows rows) {
  return svbfmmla_f32(sum, svreinterpret_bf16_u32(weights), svreinterpret_bf16_u8(rows));
}
inline Whole multiply(Whole sum, Quads weights, TwoRows rows) {
  return svusmmla_s32(sum, weights, svreinterpret_s8_u8(rows));
}
#endif

// Rounds to integers; x must be scaled to -32767 to 32767.
inline void store_int16(int16_t *p, Float x) { svst1h_s32(all(), p, rounded(x)); }
inline Float only_where(Float by, Float x) { return svsel_f32(svcmpeq_n_f32(all(), by, 0.0f), zero(), x); }
inline void store_int8(int8_t *p, Float x) { svst1b_s32(all(), p, rounded(x)); }
inline Float magnitude(Float x) { return svabs_f32_x(all(), x); }
inline void prefetch(const void *p) { __builtin_prefetch(p, 0, 3); }
inline void prefetch_ahead(const void *p) { __builtin_prefetch(p, 0, 2); }  // not into the L1 cache

}  // namespace VARIANT::simd
