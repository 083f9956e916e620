// The hash behind the noise, for single words, as defined in core/tessera/ops/sampling.py.
#pragma once
#include <cstdint>

namespace VARIANT::hash {

constexpr uint32_t GOLDEN = 0x9E3779B9, FACTORS[] = {0x21F0AAAD, 0xD35A2D97};

inline uint32_t mixed(uint32_t x) {
  x = (x ^ (x >> 16)) * FACTORS[0];
  x = (x ^ (x >> 15)) * FACTORS[1];
  return x ^ (x >> 15);
}

struct Keys {
  uint32_t key, other;
};

// seed: its low and high bits.
inline Keys keys(const int32_t seed[2], int32_t position) {
  auto low = (uint32_t)seed[0], high = (uint32_t)seed[1], place = (uint32_t)position;
  uint32_t key = mixed(mixed(low ^ GOLDEN) + place);
  return {key, mixed(mixed(high + place) ^ key)};
}

}  // namespace VARIANT::hash
