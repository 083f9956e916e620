// Vectorized exp, accurate to about two units in the last place, and the activations that use it.
#pragma once
#include "kernels.h"

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

// x times the normal distribution of x: for x > 0 that is x less x times the tail, which is erfc(z) / 2 with z = |x| / sqrt(2), so that
// nothing cancels. With t = 1 / (1 + z / 2), erfc(z) is t exp(-z^2 + p(t)); p is fitted at Chebyshev nodes for z up to 10.
inline Float gelu(Float x) {
  Float z = min(mul(magnitude(x), set(0.70710678f)), set(1e3f));
  Float t = div(set(1.0f), fma(z, set(0.5f), set(1.0f))), power = set(0.144928633f);
  constexpr float TERMS[] = {-0.680821848f, 1.1567288f,    -0.696255173f, -0.0802697852f, 0.00125786145f,
                             0.0346074285f, 0.386639183f,  0.998632955f,  -1.26544801f};
  for (float term : TERMS) power = fma(power, t, set(term));
  Float tail = mul(mul(t, set(0.5f)), exp(sub(power, mul(z, z))));
  return choose(x, zero(), sub(x, mul(min(x, set(1e3f)), tail)), mul(x, tail));
}

inline Float sigmoid(Float x) { return div(set(1.0f), add(set(1.0f), exp(sub(zero(), x)))); }
inline Float silu(Float x) { return div(x, add(set(1.0f), exp(sub(zero(), x)))); }

inline Float activated(Float x, Activation activation) {
  if (activation == Activation::silu) return silu(x);
  if (activation == Activation::gelu) return gelu(x);
  if (activation == Activation::relu) return max(x, zero());
  if (activation == Activation::relu2) return mul(max(x, zero()), max(x, zero()));
  // gelu_tanh: x * sigmoid(2 sqrt(2 / pi) (x + 0.044715 x^3))
  Float inner = mul(set(1.5957691216f), mul(x, fma(mul(x, x), set(0.044715f), set(1.0f))));
  return div(x, add(set(1.0f), exp(sub(zero(), inner))));
}

}  // namespace VARIANT::simd
