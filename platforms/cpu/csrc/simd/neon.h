// NEON: 8 floats, in two registers. With the extensions that the compiler enables: dot products of int8 (DotProd), of bf16 (BF16),
// and matrix products (I8MM and BF16).
#pragma once
#include <arm_neon.h>

#include <cstdint>
#include <cstring>

namespace VARIANT::simd {

constexpr int W = 8;
constexpr int ROWS = 6;
constexpr bool READS_AHEAD = false;
constexpr int AHEAD = 16;

template <class Register> struct Two {
  Register at[2];
};
using Float = Two<float32x4_t>;
using Pairs = Two<uint32x4_t>;
using Whole = Two<int32x4_t>;
using Quads = Two<uint8x16_t>;
// The first elements of W pairs, and the second ones.
struct Shorts {
  int16x8_t first, second;
};

template <class Result, class Each> inline Result each(Each &&each) { return {each(0), each(1)}; }

inline Float set(float x) { return {vdupq_n_f32(x), vdupq_n_f32(x)}; }
inline Float zero() { return set(0.0f); }
inline Float load(const float *p) { return {vld1q_f32(p), vld1q_f32(p + 4)}; }
inline void store(float *p, Float x) { vst1q_f32(p, x.at[0]), vst1q_f32(p + 4, x.at[1]); }
inline Float add(Float a, Float b) { return each<Float>([&](int i) { return vaddq_f32(a.at[i], b.at[i]); }); }
inline Float sub(Float a, Float b) { return each<Float>([&](int i) { return vsubq_f32(a.at[i], b.at[i]); }); }
inline Float mul(Float a, Float b) { return each<Float>([&](int i) { return vmulq_f32(a.at[i], b.at[i]); }); }
inline Float div(Float a, Float b) { return each<Float>([&](int i) { return vdivq_f32(a.at[i], b.at[i]); }); }
// A number, if one of both is NaN.
inline Float max(Float a, Float b) { return each<Float>([&](int i) { return vmaxnmq_f32(a.at[i], b.at[i]); }); }
inline Float min(Float a, Float b) { return each<Float>([&](int i) { return vminnmq_f32(a.at[i], b.at[i]); }); }
inline Float fma(Float a, Float b, Float c) {
  return each<Float>([&](int i) { return vfmaq_f32(c.at[i], a.at[i], b.at[i]); });
}
inline float sum(Float x) { return vaddvq_f32(vaddq_f32(x.at[0], x.at[1])); }
inline float largest(Float x) { return vmaxnmvq_f32(vmaxnmq_f32(x.at[0], x.at[1])); }
inline Float round(Float x) { return each<Float>([&](int i) { return vrndnq_f32(x.at[i]); }); }
inline Float scale_by_power(Float x, Float n) {
  return each<Float>([&](int i) {
    int32x4_t exponent = vmaxq_s32(vcvtnq_s32_f32(n.at[i]), vdupq_n_s32(-127));  // which yields 0
    return vmulq_f32(x.at[i], vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(exponent, vdupq_n_s32(127)), 23)));
  });
}

inline Float load_bf16(const uint16_t *p) {
  uint16x8_t x = vld1q_u16(p);
  return {vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(x), 16)), vreinterpretq_f32_u32(vshll_high_n_u16(x, 16))};
}
inline void store_bf16(uint16_t *p, Float x) {
#ifdef __ARM_FEATURE_BF16_VECTOR_ARITHMETIC
  bfloat16x8_t rounded = vcvtq_high_bf16_f32(vcvtq_low_bf16_f32(x.at[0]), x.at[1]);
  std::memcpy(p, &rounded, sizeof rounded);
#else
  Pairs rounded = each<Pairs>([&](int i) {
    uint32x4_t bits = vreinterpretq_u32_f32(x.at[i]), odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
    bits = vaddq_u32(bits, vaddq_u32(odd, vdupq_n_u32(0x7fff)));
    return vbslq_u32(vceqq_f32(x.at[i], x.at[i]), bits, vdupq_n_u32(0x7fc00000));
  });
  vst1q_u16(p, vuzp2q_u16(vreinterpretq_u16_u32(rounded.at[0]), vreinterpretq_u16_u32(rounded.at[1])));
#endif
}

inline Pairs load_pairs(const uint16_t *p) {
  return each<Pairs>([&](int i) { return vreinterpretq_u32_u16(vld1q_u16(p + 8 * i)); });
}
inline Pairs set_pair(uint32_t pair) { return {vdupq_n_u32(pair), vdupq_n_u32(pair)}; }
#ifdef __ARM_FEATURE_BF16_VECTOR_ARITHMETIC
inline Float dot(Float sum, Pairs a, Pairs b) {
  return each<Float>([&](int i) {
    return vbfdotq_f32(sum.at[i], vreinterpretq_bf16_u32(a.at[i]), vreinterpretq_bf16_u32(b.at[i]));
  });
}
inline Pairs only_first(Pairs x) {
  return each<Pairs>([&](int i) { return vandq_u32(x.at[i], vdupq_n_u32(0xffff)); });
}
#else
inline Float first_of(Pairs x) {
  return each<Float>([&](int i) { return vreinterpretq_f32_u32(vshlq_n_u32(x.at[i], 16)); });
}
inline Float second_of(Pairs x) {
  return each<Float>([&](int i) { return vreinterpretq_f32_u32(vandq_u32(x.at[i], vdupq_n_u32(0xffff0000))); });
}
#endif

inline Whole set_whole(int32_t x) { return {vdupq_n_s32(x), vdupq_n_s32(x)}; }
inline Float to_float(Whole x) { return each<Float>([&](int i) { return vcvtq_f32_s32(x.at[i]); }); }
inline Whole as_whole(Float x) { return each<Whole>([&](int i) { return vreinterpretq_s32_f32(x.at[i]); }); }
inline Whole lanes() { return {int32x4_t{0, 1, 2, 3}, int32x4_t{4, 5, 6, 7}}; }
inline Whole load(const int32_t *p) { return {vld1q_s32(p), vld1q_s32(p + 4)}; }
inline void store(int32_t *p, Whole x) { vst1q_s32(p, x.at[0]), vst1q_s32(p + 4, x.at[1]); }
inline Whole add(Whole a, Whole b) { return each<Whole>([&](int i) { return vaddq_s32(a.at[i], b.at[i]); }); }
inline Whole sub(Whole a, Whole b) { return each<Whole>([&](int i) { return vsubq_s32(a.at[i], b.at[i]); }); }
inline Whole mul(Whole a, Whole b) { return each<Whole>([&](int i) { return vmulq_s32(a.at[i], b.at[i]); }); }
inline Whole exclusive_or(Whole a, Whole b) { return each<Whole>([&](int i) { return veorq_s32(a.at[i], b.at[i]); }); }
template <int N> inline Whole shifted(Whole x) {
  return each<Whole>([&](int i) { return vreinterpretq_s32_u32(vshrq_n_u32(vreinterpretq_u32_s32(x.at[i]), N)); });
}
inline bool any_above(Float x, Float bound) {
  uint32x4_t below = vandq_u32(vcleq_f32(x.at[0], bound.at[0]), vcleq_f32(x.at[1], bound.at[1]));
  return vminvq_u32(below) == 0;
}
inline int count_above(Float x, Float bound) {
  uint32x4_t ones = vaddq_u32(vcgtq_f32(x.at[0], bound.at[0]), vcgtq_f32(x.at[1], bound.at[1]));  // -1 for each
  return -(int)vaddvq_u32(ones);
}
inline Float choose(Float x, Float bound, Float yes, Float no) {
  return each<Float>([&](int i) { return vbslq_f32(vcgtq_f32(x.at[i], bound.at[i]), yes.at[i], no.at[i]); });
}

inline Quads load_quads(const uint8_t *p) { return {vld1q_u8(p), vld1q_u8(p + 16)}; }
inline void store_quads(uint8_t *p, Quads x) { vst1q_u8(p, x.at[0]), vst1q_u8(p + 16, x.at[1]); }
inline Quads set_quad(uint32_t four) { return each<Quads>([&](int) { return vreinterpretq_u8_u32(vdupq_n_u32(four)); }); }
inline Quads low_halves(Quads x) { return each<Quads>([&](int i) { return vandq_u8(x.at[i], vdupq_n_u8(15)); }); }
inline Quads high_halves(Quads x) { return each<Quads>([&](int i) { return vshrq_n_u8(x.at[i], 4); }); }

inline Shorts set_shorts(uint32_t pair) {
  return {vdupq_n_s16((int16_t)(uint16_t)pair), vdupq_n_s16((int16_t)(uint16_t)(pair >> 16))};
}
inline Shorts widen_pairs(const int8_t *p) {
  int16x8_t pairs = vreinterpretq_s16_s8(vld1q_s8(p));
  return {vshrq_n_s16(vshlq_n_s16(pairs, 8), 8), vshrq_n_s16(pairs, 8)};
}
inline Whole dot_whole(Whole sum, Shorts a, Shorts b) {
  auto add = [](Whole sum, int16x8_t a, int16x8_t b) {
    return Whole{vmlal_s16(sum.at[0], vget_low_s16(a), vget_low_s16(b)), vmlal_high_s16(sum.at[1], a, b)};
  };
  return add(add(sum, a.first, b.first), a.second, b.second);
}

inline Quads bits_down(Quads x, int n) {
  return each<Quads>([&](int i) { return vshlq_u8(x.at[i], vdupq_n_s8((int8_t)-n)); });
}
template <int N> inline Quads bits_up(Quads x) { return each<Quads>([&](int i) { return vshlq_n_u8(x.at[i], N); }); }
template <uint8_t MASK> inline Quads joined(Quads low, Quads high) {
  return each<Quads>([&](int i) { return vorrq_u8(low.at[i], vandq_u8(high.at[i], vdupq_n_u8(MASK))); });
}
using Table = uint8x16_t;
inline Table load_table(const uint8_t *p) { return vld1q_u8(p); }
inline Quads look_up(Table table, Quads numbers) {
  return each<Quads>([&](int i) { return vqtbl1q_u8(table, numbers.at[i]); });
}
inline Float load_bytes(const uint8_t *p) {
  uint16x8_t x = vmovl_u8(vld1_u8(p));
  return {vcvtq_f32_u32(vmovl_u16(vget_low_u16(x))), vcvtq_f32_u32(vmovl_high_u16(x))};
}
inline Float load_half(const uint16_t *p) {
  return each<Float>([&](int i) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p + 4 * i))); });
}

// Products of an unsigned with a signed number came later than others. Without them, codes of eight bits lose 128.
#ifdef __ARM_FEATURE_MATMUL_INT8
template <bool NARROW> constexpr int32_t LESS = 0;
template <bool NARROW> inline Quads lessened(Quads codes) { return codes; }
#else
template <bool NARROW> constexpr int32_t LESS = NARROW ? 0 : 128;
template <bool NARROW> inline Quads lessened(Quads codes) {
  return NARROW ? codes : each<Quads>([&](int i) { return veorq_u8(codes.at[i], vdupq_n_u8(128)); });
}
#endif
#ifdef __ARM_FEATURE_DOTPROD
inline Whole dot(Whole sum, Quads codes, Quads with_sign) {
  return each<Whole>([&](int i) {
#ifdef __ARM_FEATURE_MATMUL_INT8
    return vusdotq_s32(sum.at[i], codes.at[i], vreinterpretq_s8_u8(with_sign.at[i]));
#else
    return vdotq_s32(sum.at[i], vreinterpretq_s8_u8(codes.at[i]), vreinterpretq_s8_u8(with_sign.at[i]));
#endif
  });
}
template <bool NARROW> inline Whole dot_codes(Whole sum, Quads front, Quads back, Quads x_front, Quads x_back) {
  return dot(dot(sum, front, x_front), back, x_back);
}
#else
// Sums of two products in 16 bits each.
inline int16x8_t by_two(uint8x16_t codes, uint8x16_t with_sign) {
  int8x16_t a = vreinterpretq_s8_u8(codes), b = vreinterpretq_s8_u8(with_sign);
  return vpaddq_s16(vmull_s8(vget_low_s8(a), vget_low_s8(b)), vmull_high_s8(a, b));
}
template <bool NARROW> inline Whole dot_codes(Whole sum, Quads front, Quads back, Quads x_front, Quads x_back) {
  return each<Whole>([&](int i) {
    int16x8_t first = by_two(front.at[i], x_front.at[i]), second = by_two(back.at[i], x_back.at[i]);
    if constexpr (NARROW)
      return vpadalq_s16(sum.at[i], vaddq_s16(first, second));
    else
      return vpadalq_s16(vpadalq_s16(sum.at[i], first), second);
  });
}
#endif

#ifdef __ARM_FEATURE_MATMUL_INT8
template <class R> inline Two<R> two(uint32x4_t low, uint32x4_t high) { return {(R)low, (R)high}; }
// Words of a and b alternately: of the lower, or the upper half of their lanes.
template <class R> inline Two<R> lower_words(Two<R> a, Two<R> b) {
  auto x = (uint32x4_t)a.at[0], y = (uint32x4_t)b.at[0];
  return two<R>(vzip1q_u32(x, y), vzip2q_u32(x, y));
}
template <class R> inline Two<R> upper_words(Two<R> a, Two<R> b) {
  auto x = (uint32x4_t)a.at[1], y = (uint32x4_t)b.at[1];
  return two<R>(vzip1q_u32(x, y), vzip2q_u32(x, y));
}
// The reverse: every other word of a, then of b, from the first or from the second on.
template <class R> inline Two<R> even_words(Two<R> a, Two<R> b) {
  return two<R>(vuzp1q_u32((uint32x4_t)a.at[0], (uint32x4_t)a.at[1]), vuzp1q_u32((uint32x4_t)b.at[0], (uint32x4_t)b.at[1]));
}
template <class R> inline Two<R> odd_words(Two<R> a, Two<R> b) {
  return two<R>(vuzp2q_u32((uint32x4_t)a.at[0], (uint32x4_t)a.at[1]), vuzp2q_u32((uint32x4_t)b.at[0], (uint32x4_t)b.at[1]));
}
// Eight bytes of one row, then eight of another, throughout.
using TwoRows = uint8x16_t;
inline TwoRows set_rows(const void *one, const void *other) {
  return vcombine_u8(vld1_u8((const uint8_t *)one), vld1_u8((const uint8_t *)other));
}
// sum + the products of two rows with the outputs, two outputs at a time. Words of `weights` alternate between the first and the
// second half of eight bytes of each output; the sums of a row alternate with those of the other.
inline Float multiply(Float sum, Pairs weights, TwoRows rows) {
  return each<Float>([&](int i) {
    return vbfmmlaq_f32(sum.at[i], vreinterpretq_bf16_u32(weights.at[i]), vreinterpretq_bf16_u8(rows));
  });
}
inline Whole multiply(Whole sum, Quads weights, TwoRows rows) {
  return each<Whole>([&](int i) { return vusmmlaq_s32(sum.at[i], weights.at[i], vreinterpretq_s8_u8(rows)); });
}
#endif

// Rounds to integers; x must be scaled to -32767 to 32767.
inline void store_int16(int16_t *p, Float x) {
  vst1q_s16(p, vqmovn_high_s32(vqmovn_s32(vcvtnq_s32_f32(x.at[0])), vcvtnq_s32_f32(x.at[1])));
}
inline Float only_where(Float by, Float x) {
  return each<Float>([&](int i) {
    return vreinterpretq_f32_u32(vbicq_u32(vreinterpretq_u32_f32(x.at[i]), vceqzq_f32(by.at[i])));
  });
}
inline void store_int8(int8_t *p, Float x) {
  int16x8_t whole = vqmovn_high_s32(vqmovn_s32(vcvtnq_s32_f32(x.at[0])), vcvtnq_s32_f32(x.at[1]));
  vst1_s8(p, vqmovn_s16(whole));
}
inline Float magnitude(Float x) { return each<Float>([&](int i) { return vabsq_f32(x.at[i]); }); }
inline void prefetch(const void *p) { __builtin_prefetch(p, 0, 3); }
inline void prefetch_ahead(const void *p) { __builtin_prefetch(p, 0, 2); }  // not into the L1 cache

}  // namespace VARIANT::simd
