// VSX of Power ISA 3.0, little-endian: 8 floats, in two registers.
#pragma once
#include <altivec.h>

#include <cstdint>
#include <cstring>

#undef vector  // which altivec.h defines, as it does
#undef pixel
#undef bool

namespace VARIANT::simd {

constexpr int W = 8;
#ifdef __MMA__
constexpr int ROWS = 8;  // eight accumulators of four rows by four outputs
#else
constexpr int ROWS = 12;
#endif
constexpr bool READS_AHEAD = false;
constexpr int AHEAD = 16;

using F4 = __vector float;
using I4 = __vector signed int;
using U4 = __vector unsigned int;
using I8 = __vector signed short;
using U8 = __vector unsigned short;
using I16 = __vector signed char;
using U16 = __vector unsigned char;

template <class Register> struct Two {
  Register at[2];
};
using Float = Two<F4>;
using Pairs = Two<U4>;
using Whole = Two<I4>;
using Quads = Two<U16>;
using Shorts = Two<I8>;

template <class Result, class Each> inline Result each(Each &&each) { return {{each(0), each(1)}}; }
template <class Register> inline Register at(const void *p, int i) {
  Register x;
  std::memcpy(&x, (const char *)p + i * sizeof x, sizeof x);
  return x;
}
template <class R> inline void write(void *p, Two<R> x) { std::memcpy(p, x.at, sizeof x.at); }

inline Float set(float x) { return {{vec_splats(x), vec_splats(x)}}; }
inline Float zero() { return set(0.0f); }
inline Float load(const float *p) { return each<Float>([&](int i) { return at<F4>(p, i); }); }
inline void store(float *p, Float x) { write(p, x); }
inline Float add(Float a, Float b) { return each<Float>([&](int i) { return a.at[i] + b.at[i]; }); }
inline Float sub(Float a, Float b) { return each<Float>([&](int i) { return a.at[i] - b.at[i]; }); }
inline Float mul(Float a, Float b) { return each<Float>([&](int i) { return a.at[i] * b.at[i]; }); }
inline Float div(Float a, Float b) { return each<Float>([&](int i) { return a.at[i] / b.at[i]; }); }
// A number, if one of both is NaN.
inline Float max(Float a, Float b) { return each<Float>([&](int i) { return vec_max(a.at[i], b.at[i]); }); }
inline Float min(Float a, Float b) { return each<Float>([&](int i) { return vec_min(a.at[i], b.at[i]); }); }
inline Float fma(Float a, Float b, Float c) {
  return each<Float>([&](int i) { return vec_madd(a.at[i], b.at[i], c.at[i]); });
}
inline F4 swapped(F4 x, int words) { return words == 2 ? vec_sld(x, x, 8) : vec_sld(x, x, 4); }
inline float sum(Float x) {
  F4 all = x.at[0] + x.at[1];
  all = all + swapped(all, 2);
  return vec_extract(all + swapped(all, 1), 0);
}
inline float largest(Float x) {
  F4 all = vec_max(x.at[0], x.at[1]);
  all = vec_max(all, swapped(all, 2));
  return vec_extract(vec_max(all, swapped(all, 1)), 0);
}
inline Float round(Float x) { return each<Float>([&](int i) { return vec_rint(x.at[i]); }); }
inline I4 rounded(F4 x) { return vec_signed(vec_rint(x)); }
inline Float scale_by_power(Float x, Float n) {
  return each<Float>([&](int i) {
    I4 exponent = vec_max(vec_signed(n.at[i]), vec_splats(-127));  // which yields 0
    return x.at[i] * (F4)((exponent + 127) << vec_splats(23u));
  });
}

inline Float load_bf16(const uint16_t *p) {
  U8 x = at<U8>(p, 0), none = vec_splats((unsigned short)0);
  return {{(F4)vec_mergeh(none, x), (F4)vec_mergel(none, x)}};
}
inline void store_bf16(uint16_t *p, Float x) {
  auto rounded = [&](int i) {
    U4 bits = (U4)x.at[i];
    bits += (bits >> vec_splats(16u) & 1) + 0x7fff;
    return vec_sel(vec_splats(0x7fc0u), bits >> vec_splats(16u), vec_cmpeq(x.at[i], x.at[i]));
  };
  U8 both = vec_pack(rounded(0), rounded(1));
  std::memcpy(p, &both, sizeof both);
}

inline Pairs load_pairs(const uint16_t *p) { return each<Pairs>([&](int i) { return at<U4>(p, i); }); }
inline Float first_of(Pairs x) { return each<Float>([&](int i) { return (F4)(x.at[i] << vec_splats(16u)); }); }
inline Float second_of(Pairs x) { return each<Float>([&](int i) { return (F4)(x.at[i] & 0xffff0000); }); }

inline Whole set_whole(int32_t x) { return {{vec_splats(x), vec_splats(x)}}; }
inline Float to_float(Whole x) { return each<Float>([&](int i) { return vec_float(x.at[i]); }); }
inline Whole as_whole(Float x) { return each<Whole>([&](int i) { return (I4)x.at[i]; }); }
inline Whole lanes() { return {{I4{0, 1, 2, 3}, I4{4, 5, 6, 7}}}; }
inline Whole load(const int32_t *p) { return each<Whole>([&](int i) { return at<I4>(p, i); }); }
inline void store(int32_t *p, Whole x) { write(p, x); }
inline Whole add(Whole a, Whole b) { return each<Whole>([&](int i) { return (I4)((U4)a.at[i] + (U4)b.at[i]); }); }
inline Whole sub(Whole a, Whole b) { return each<Whole>([&](int i) { return (I4)((U4)a.at[i] - (U4)b.at[i]); }); }
inline Whole mul(Whole a, Whole b) { return each<Whole>([&](int i) { return (I4)((U4)a.at[i] * (U4)b.at[i]); }); }
inline Whole exclusive_or(Whole a, Whole b) { return each<Whole>([&](int i) { return a.at[i] ^ b.at[i]; }); }
template <int N> inline Whole shifted(Whole x) {
  return each<Whole>([&](int i) { return (I4)((U4)x.at[i] >> vec_splats((unsigned)N)); });
}
inline bool any_above(Float x, Float bound) { return !vec_all_le(x.at[0], bound.at[0]) || !vec_all_le(x.at[1], bound.at[1]); }
inline int count_above(Float x, Float bound) {
  I4 ones = (I4)vec_cmpgt(x.at[0], bound.at[0]) + (I4)vec_cmpgt(x.at[1], bound.at[1]);  // -1 for each
  return -vec_extract(vec_sums(ones, vec_splats(0)), 3);
}
inline Float choose(Float x, Float bound, Float yes, Float no) {
  return each<Float>([&](int i) { return vec_sel(no.at[i], yes.at[i], vec_cmpgt(x.at[i], bound.at[i])); });
}

inline Quads load_quads(const uint8_t *p) { return each<Quads>([&](int i) { return at<U16>(p, i); }); }
inline void store_quads(uint8_t *p, Quads x) { write(p, x); }
inline Quads set_quad(uint32_t four) { return each<Quads>([&](int) { return (U16)vec_splats(four); }); }
inline Quads low_halves(Quads x) { return each<Quads>([&](int i) { return x.at[i] & 15; }); }
inline Quads high_halves(Quads x) { return each<Quads>([&](int i) { return x.at[i] >> vec_splats((unsigned char)4); }); }
inline Quads bits_down(Quads x, int n) {
  return each<Quads>([&](int i) { return x.at[i] >> vec_splats((unsigned char)n); });
}
template <int N> inline Quads bits_up(Quads x) {
  return each<Quads>([&](int i) { return x.at[i] << vec_splats((unsigned char)N); });
}
template <uint8_t MASK> inline Quads joined(Quads low, Quads high) {
  return each<Quads>([&](int i) { return low.at[i] | (high.at[i] & MASK); });
}
using Table = U16;
inline Table load_table(const uint8_t *p) { return at<U16>(p, 0); }
inline Quads look_up(Table table, Quads numbers) {
  return each<Quads>([&](int i) { return vec_perm(table, table, numbers.at[i]); });
}
inline Float load_bytes(const uint8_t *p) {
  return {{F4{(float)p[0], (float)p[1], (float)p[2], (float)p[3]}, F4{(float)p[4], (float)p[5], (float)p[6], (float)p[7]}}};
}
// As in portable.h.
inline Float load_half(const uint16_t *p) {
  U8 x = at<U8>(p, 0), none = vec_splats((unsigned short)0);
  auto one = [](U4 half) {
    F4 value = (F4)((half & 0x7fff) << vec_splats(13u)) * vec_splats(0x1p112f);
    return (F4)((U4)value | (half & 0x8000) << vec_splats(16u));
  };
  return {{one((U4)vec_mergeh(x, none)), one((U4)vec_mergel(x, none))}};
}
template <bool NARROW> constexpr int32_t LESS = 0;
template <bool NARROW> inline Quads lessened(Quads codes) { return codes; }
inline Whole dot(Whole sum, Quads bytes, Quads with_sign) {
  return each<Whole>([&](int i) { return vec_msum((I16)with_sign.at[i], bytes.at[i], sum.at[i]); });
}
template <bool NARROW> inline Whole dot_codes(Whole sum, Quads front, Quads back, Quads x_front, Quads x_back) {
  return dot(dot(sum, front, x_front), back, x_back);
}

inline Shorts set_shorts(uint32_t pair) { return each<Shorts>([&](int) { return (I8)vec_splats(pair); }); }
inline Shorts widen_pairs(const int8_t *p) {
  I16 x = at<I16>(p, 0);
  return {{vec_unpackh(x), vec_unpackl(x)}};
}
inline Whole dot_whole(Whole sum, Shorts a, Shorts b) {
  return each<Whole>([&](int i) { return vec_msum(a.at[i], b.at[i], sum.at[i]); });
}

// Rounds to integers; x must be scaled to -32767 to 32767.
inline void store_int16(int16_t *p, Float x) {
  I8 whole = vec_packs(rounded(x.at[0]), rounded(x.at[1]));
  std::memcpy(p, &whole, sizeof whole);
}
inline Float only_where(Float by, Float x) {
  return each<Float>([&](int i) { return vec_sel(x.at[i], vec_splats(0.0f), vec_cmpeq(by.at[i], vec_splats(0.0f))); });
}
inline void store_int8(int8_t *p, Float x) {
  I8 whole = vec_packs(rounded(x.at[0]), rounded(x.at[1]));
  I16 bytes = vec_packs(whole, whole);
  std::memcpy(p, &bytes, W);
}
inline Float magnitude(Float x) { return each<Float>([&](int i) { return vec_abs(x.at[i]); }); }
inline void prefetch(const void *p) { __builtin_prefetch(p, 0, 3); }
inline void prefetch_ahead(const void *p) { __builtin_prefetch(p, 0, 2); }

}  // namespace VARIANT::simd
