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

inline Float activated(Float x, Activation activation) {
  if (activation == Activation::silu) return div(x, add(set(1.0f), exp(sub(zero(), x))));
  // gelu_tanh: x * sigmoid(2 sqrt(2 / pi) (x + 0.044715 x^3))
  Float inner = mul(set(1.5957691216f), mul(x, fma(mul(x, x), set(0.044715f), set(1.0f))));
  return div(x, add(set(1.0f), exp(sub(zero(), inner))));
}

}  // namespace VARIANT::simd
