// Rows of bf16 or of float, whose numbers are computed with as floats.
#pragma once
#include <cstring>

#include "kernels.h"

namespace VARIANT::numbers {

using namespace simd;

inline Float take(const bf16 *p) { return load_bf16(p); }
inline Float take(const float *p) { return load(p); }
inline void put(bf16 *p, Float x) { store_bf16(p, x); }
inline void put(float *p, Float x) { store(p, x); }

// The first `count` numbers, then zeros; `count` is less than W.
template <class T> inline Float take_some(const T *p, int64_t count) {
  T whole[W] = {};
  std::memcpy(whole, p, count * sizeof(T));
  return take(whole);
}
template <class T> inline void put_some(T *p, Float x, int64_t count) {
  T whole[W];
  put(whole, x);
  std::memcpy(p, whole, count * sizeof(T));
}

}  // namespace VARIANT::numbers
