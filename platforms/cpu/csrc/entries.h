// Access to single logits.
#pragma once
#include <cmath>

#include "draws.h"
#include "single.h"

namespace VARIANT::entries {

inline float widened(uint16_t x) { return single::widened(x); }
inline float widened(float x) { return x; }

inline float divisor(const Logits &logits, int64_t row) {
  return logits.temperature && logits.temperature[row] > 0.0f ? logits.temperature[row] : 1.0f;
}

template <class T> inline float entry(const Logits &logits, int64_t row, int64_t number) {
  return widened(((const T *)logits.at)[row * logits.stride + number]) / divisor(logits, row);
}

// The larger of two values; NaN counts as the largest.
inline float larger(float most, float x) { return most != most || x <= most ? most : x; }

inline bool in(const Prefix &prefix, float value, int64_t number) {
  return value > prefix.value || (value == prefix.value && number <= prefix.last);
}

}  // namespace VARIANT::entries
