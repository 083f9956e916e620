// Plain C++ on eight floats at a time, which the compiler may vectorize for the processor.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

namespace VARIANT::simd {

constexpr int W = 8;
constexpr int ROWS = 4;
constexpr bool READS_AHEAD = false;
constexpr int AHEAD = 24;
struct Float {
  float at[W];
};
struct Pairs {
  uint32_t at[W];
};
struct Whole {
  int32_t at[W];
};
using Quads = Pairs;
using Shorts = Pairs;

template <class Result, class Each> inline Result each(Each &&each) {
  Result result;
  for (int i = 0; i < W; i++) result.at[i] = each(i);
  return result;
}
using single::rounded;
using single::widened;

inline Float set(float x) { return each<Float>([&](int) { return x; }); }
inline Float zero() { return set(0.0f); }
inline Float load(const float *p) { return each<Float>([&](int i) { return p[i]; }); }
inline void store(float *p, Float x) { std::memcpy(p, x.at, sizeof x.at); }
inline Float add(Float a, Float b) { return each<Float>([&](int i) { return a.at[i] + b.at[i]; }); }
inline Float sub(Float a, Float b) { return each<Float>([&](int i) { return a.at[i] - b.at[i]; }); }
inline Float mul(Float a, Float b) { return each<Float>([&](int i) { return a.at[i] * b.at[i]; }); }
inline Float div(Float a, Float b) { return each<Float>([&](int i) { return a.at[i] / b.at[i]; }); }
inline Float max(Float a, Float b) { return each<Float>([&](int i) { return a.at[i] > b.at[i] ? a.at[i] : b.at[i]; }); }
inline Float min(Float a, Float b) { return each<Float>([&](int i) { return a.at[i] < b.at[i] ? a.at[i] : b.at[i]; }); }
inline Float fma(Float a, Float b, Float c) {
  return each<Float>([&](int i) { return a.at[i] * b.at[i] + c.at[i]; });
}
inline float sum(Float x) {
  float total = 0.0f;
  for (float one : x.at) total += one;
  return total;
}
inline float largest(Float x) {
  float most = x.at[0];
  for (float one : x.at) most = one > most ? one : most;
  return most;
}
inline Float round(Float x) { return each<Float>([&](int i) { return std::nearbyintf(x.at[i]); }); }
inline Float scale_by_power(Float x, Float n) {
  return each<Float>([&](int i) { return std::ldexp(x.at[i], (int)n.at[i]); });
}

inline Float load_bf16(const uint16_t *p) { return each<Float>([&](int i) { return widened(p[i]); }); }
inline void store_bf16(uint16_t *p, Float x) {
  for (int i = 0; i < W; i++) p[i] = rounded(x.at[i]);
}

inline Pairs load_pairs(const uint16_t *p) {
  Pairs pairs;
  std::memcpy(pairs.at, p, sizeof pairs.at);
  return pairs;
}
inline Shorts set_shorts(uint32_t pair) { return each<Shorts>([&](int) { return pair; }); }
inline Float first_of(Pairs x) { return each<Float>([&](int i) { return widened((uint16_t)x.at[i]); }); }
inline Float second_of(Pairs x) { return each<Float>([&](int i) { return widened((uint16_t)(x.at[i] >> 16)); }); }

inline Whole set_whole(int32_t x) { return each<Whole>([&](int) { return x; }); }
inline Float to_float(Whole x) { return each<Float>([&](int i) { return (float)x.at[i]; }); }
inline Whole as_whole(Float x) {
  Whole bits;
  std::memcpy(bits.at, x.at, sizeof bits.at);
  return bits;
}
inline Whole lanes() { return each<Whole>([](int i) { return i; }); }
inline Whole load(const int32_t *p) { return each<Whole>([&](int i) { return p[i]; }); }
inline void store(int32_t *p, Whole x) { std::memcpy(p, x.at, sizeof x.at); }
inline Whole add(Whole a, Whole b) { return each<Whole>([&](int i) { return (uint32_t)a.at[i] + (uint32_t)b.at[i]; }); }
inline Whole sub(Whole a, Whole b) { return each<Whole>([&](int i) { return (uint32_t)a.at[i] - (uint32_t)b.at[i]; }); }
inline Whole mul(Whole a, Whole b) { return each<Whole>([&](int i) { return (uint32_t)a.at[i] * (uint32_t)b.at[i]; }); }
inline Whole exclusive_or(Whole a, Whole b) { return each<Whole>([&](int i) { return a.at[i] ^ b.at[i]; }); }
template <int N> inline Whole shifted(Whole x) {
  return each<Whole>([&](int i) { return (uint32_t)x.at[i] >> N; });
}
inline bool any_above(Float x, Float bound) {
  int found = 0;
  for (int i = 0; i < W; i++) found |= !(x.at[i] <= bound.at[i]);
  return found;
}
inline int count_above(Float x, Float bound) {
  int found = 0;
  for (int i = 0; i < W; i++) found += x.at[i] > bound.at[i];
  return found;
}
inline Float choose(Float x, Float bound, Float yes, Float no) {
  return each<Float>([&](int i) { return x.at[i] > bound.at[i] ? yes.at[i] : no.at[i]; });
}
inline Quads load_quads(const uint8_t *p) {
  Quads quads;
  std::memcpy(quads.at, p, sizeof quads.at);
  return quads;
}
inline void store_quads(uint8_t *p, Quads x) { std::memcpy(p, x.at, sizeof x.at); }
inline Quads set_quad(uint32_t four) { return set_shorts(four); }
inline Quads low_halves(Quads x) { return each<Quads>([&](int i) { return x.at[i] & 0x0f0f0f0f; }); }
inline Quads high_halves(Quads x) { return each<Quads>([&](int i) { return (x.at[i] >> 4) & 0x0f0f0f0f; }); }
inline Quads bits_down(Quads x, int n) { return each<Quads>([&](int i) { return x.at[i] >> n; }); }
template <int N> inline Quads bits_up(Quads x) { return each<Quads>([&](int i) { return x.at[i] << N; }); }
template <uint8_t MASK> inline Quads joined(Quads low, Quads high) {
  return each<Quads>([&](int i) { return low.at[i] | (high.at[i] & MASK * 0x01010101u); });
}
struct Table {
  uint8_t at[16];
};
inline Table load_table(const uint8_t *p) {
  Table table;
  std::memcpy(table.at, p, sizeof table.at);
  return table;
}
inline Quads look_up(Table table, Quads numbers) {
  return each<Quads>([&](int i) {
    uint32_t four = 0;
    for (int byte = 0; byte < 32; byte += 8) four |= (uint32_t)table.at[numbers.at[i] >> byte & 15] << byte;
    return four;
  });
}
inline Float load_bytes(const uint8_t *p) { return each<Float>([&](int i) { return (float)p[i]; }); }
// Infinite numbers, and those that are none, become large ones: a weight has none.
inline Float load_half(const uint16_t *p) {
  return each<Float>([&](int i) {
    uint32_t bits = (uint32_t)(p[i] & 0x7fff) << 13, sign = (uint32_t)(p[i] & 0x8000) << 16;
    float value;
    std::memcpy(&value, &bits, sizeof value);
    value *= 0x1p112f;
    return sign ? -value : value;
  });
}
template <bool NARROW> constexpr int32_t LESS = 0;
template <bool NARROW> inline Quads lessened(Quads codes) { return codes; }
inline Whole dot(Whole sum, Quads bytes, Quads with_sign) {
  for (int byte = 0; byte < 4; byte++)
    for (int i = 0; i < W; i++)
      sum.at[i] += (int32_t)(bytes.at[i] >> 8 * byte & 255) * (int8_t)(uint8_t)(with_sign.at[i] >> 8 * byte);
  return sum;
}
template <bool NARROW> inline Whole dot_codes(Whole sum, Quads front, Quads back, Quads x_front, Quads x_back) {
  return dot(dot(sum, front, x_front), back, x_back);
}
inline Shorts widen_pairs(const int8_t *p) {
  return each<Shorts>([&](int i) { return (uint32_t)(uint16_t)p[2 * i] | (uint32_t)(uint16_t)p[2 * i + 1] << 16; });
}
inline Whole dot_whole(Whole sum, Shorts a, Shorts b) {
  return each<Whole>([&](int i) {
    int32_t first = (int16_t)(uint16_t)a.at[i] * (int16_t)(uint16_t)b.at[i];
    return sum.at[i] + first + (int16_t)(uint16_t)(a.at[i] >> 16) * (int16_t)(uint16_t)(b.at[i] >> 16);
  });
}
inline void store_int16(int16_t *p, Float x) {
  for (int i = 0; i < W; i++) p[i] = (int16_t)std::nearbyintf(x.at[i]);
}
inline Float only_where(Float by, Float x) {
  return each<Float>([&](int i) { return by.at[i] != 0.0f ? x.at[i] : 0.0f; });
}
inline void store_int8(int8_t *p, Float x) {
  for (int i = 0; i < W; i++) p[i] = (int8_t)std::nearbyintf(x.at[i]);
}
inline Float magnitude(Float x) { return each<Float>([&](int i) { return std::fabs(x.at[i]); }); }
inline void prefetch(const void *) {}
inline void prefetch_ahead(const void *) {}

}  // namespace VARIANT::simd
