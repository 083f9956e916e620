// Gumbel noise -log(-log u) for vocabulary entries: the random bits of a vector of entries, an upper bound of their noise that
// needs no logarithm, and the noise of a single entry.
#pragma once
#include <cmath>

#include "hash.h"

namespace VARIANT::noise {

using namespace simd;

inline Whole mixed(Whole x) {
  x = mul(exclusive_or(x, shifted<16>(x)), set_whole((int32_t)hash::FACTORS[0]));
  x = mul(exclusive_or(x, shifted<15>(x)), set_whole((int32_t)hash::FACTORS[1]));
  return exclusive_or(x, shifted<15>(x));
}

// 23 random bits for each of the W entries from `first` on.
inline Whole bits(const Ticket &ticket, int64_t first) {
  Whole steps = mul(lanes(), set_whole((int32_t)hash::GOLDEN));
  Whole entries = add(set_whole((int32_t)((uint32_t)first * hash::GOLDEN)), steps);
  Whole once = mixed(exclusive_or(entries, set_whole((int32_t)ticket.key)));
  return shifted<9>(mixed(add(once, set_whole((int32_t)ticket.other))));
}

// With t = 1 - u, -log u >= t, so the noise is at most -log t. t is w / 2^24 for an integer w, and log2 w is at least its linear
// interpolation between powers of two, which is how the bits of a float encode it. The bound is at most 0.06 above -log t; 0.001
// of log2 allows for rounding.
inline Float limit(Whole bits) {
  Whole w = sub(set_whole((1 << 24) - 1), add(bits, bits));
  Float written = to_float(as_whole(to_float(w)));
  return fma(written, set(-0.69314718f * 0x1p-23f), set(0.69314718f * (24 + 127 + 0.001f)));
}

inline float of(int32_t bits) {
  float u = ((float)bits + 0.5f) * 0x1p-23f;
  float inner = -(float)std::log((double)u);
  return -(float)std::log((double)inner);
}

}  // namespace VARIANT::noise
