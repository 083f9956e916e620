// Vectorized exp, accurate to about two units in the last place.
#pragma once

namespace VARIANT::simd {

inline Float exp(Float x) {
  x = min(max(x, set(-104.0f)), set(88.0f));  // below this range the result is 0
  Float n = round(mul(x, set(1.44269504f)));
  Float rest = fma(n, set(-0.693359375f), x);  // ln 2 in two parts, the first exact in few bits
  rest = fma(n, set(2.12194440e-4f), rest);
  Float power = set(1.0f / 720);
  constexpr float TERMS[] = {1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f};
  for (float term : TERMS) power = fma(power, rest, set(term));
  return scale_by_power(power, n);
}

}  // namespace VARIANT::simd
