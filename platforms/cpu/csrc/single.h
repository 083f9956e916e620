// Converts single bfloat16 numbers, for the remainders of vector loops.
#pragma once
#include <cstdint>
#include <cstring>

namespace VARIANT::single {

inline float widened(uint16_t x) {
  uint32_t bits = (uint32_t)x << 16;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}
inline uint16_t rounded(float x) {  // to the nearest, ties to even
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  if (x != x) return 0x7fc0;
  return (uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

}  // namespace VARIANT::single
