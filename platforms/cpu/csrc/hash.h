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

inline Keys keys(int64_t seed, int64_t position) {
  auto low = (uint32_t)(uint64_t)seed, high = (uint32_t)((uint64_t)seed >> 32), place = (uint32_t)(uint64_t)position;
  uint32_t key = mixed(mixed(low ^ GOLDEN) + place);
  return {key, mixed(mixed(high + place) ^ key)};
}

}  // namespace VARIANT::hash
