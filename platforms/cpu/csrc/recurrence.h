// What the recurrences of state mixers share.
#pragma once
#include <cmath>

#include "numbers.h"

namespace VARIANT::recurrence {

inline float one(const bf16 *p) { return single::widened(*p); }
inline float one(const float *p) { return *p; }

// log(1 + exp(x)), as torch computes it.
inline float softplus(float x) { return x > 20.0f ? x : std::log1p(std::exp(x)); }

}  // namespace VARIANT::recurrence
