// Reads rows of logits a vector at a time, and finds the largest entry of each block.
#pragma once
#include "entries.h"

namespace VARIANT::logits {

using namespace simd;

inline Float load_entries(const uint16_t *p) { return load_bf16(p); }
inline Float load_entries(const float *p) { return load(p); }

template <class T> struct Row {
  const T *at;
  int64_t vocab;
  float divisor;

  Row(const Logits &logits, int64_t row)
      : at((const T *)logits.at + row * logits.stride), vocab(logits.vocab), divisor(entries::divisor(logits, row)) {}

  float entry(int64_t number) const { return entries::widened(at[number]) / divisor; }

  // Calls each(number of the first entry, entries); entries past the vocabulary are -infinity.
  template <class Each> void raw(int64_t block, Each &&each) const {
    int64_t first = block * BLOCK;
    if (first + BLOCK <= vocab) {
      for (int64_t i = first; i < first + BLOCK; i += W) each(i, load_entries(at + i));
      return;
    }
    float rest[BLOCK];
    for (int64_t i = 0; i < BLOCK; i++) rest[i] = first + i < vocab ? entries::widened(at[first + i]) : -INFINITY;
    for (int64_t i = 0; i < BLOCK; i += W) each(first + i, load(rest + i));
  }

  // The same, divided by the temperature.
  template <class Each> void scaled(int64_t block, Each &&each) const {
    if (divisor == 1.0f) return raw(block, each);
    raw(block, [&](int64_t first, Float x) { each(first, div(x, set(divisor))); });
  }
};

template <class T> inline float largest_of(const Row<T> &row, int64_t block) {
  Float most = set(-INFINITY);
  bool none = false;
  row.raw(block, [&](int64_t, Float x) {
    most = max(x, most);  // ignores NaN
    none |= any_above(x, set(INFINITY));
  });
  return none ? NAN : simd::largest(most) / row.divisor;
}

// Item: a stretch of a row.
template <class T> inline void survey(const Logits &logits, int64_t first, int64_t last) {
  for (int64_t item = first; item < last; item++) {
    int64_t number = item / logits.stretches, from = item % logits.stretches * STRETCH;
    int64_t to = from + STRETCH < logits.width ? from + STRETCH : logits.width;
    Row<T> row(logits, number);
    float *largest = logits.largest + number * logits.width, peak = -INFINITY;
    for (int64_t block = from; block < to; block++) {
      largest[block] = block < logits.blocks ? largest_of(row, block) : -INFINITY;
      peak = entries::larger(peak, largest[block]);
    }
    logits.peaks[item] = peak;
  }
}

// The bounds that entries must exceed to be in a prefix.
struct Bounds {
  float low, high;  // for entries up to `last`, and after it
  int64_t last;

  explicit Bounds(const Prefix &prefix)
      : low(std::nextafter(prefix.value, -INFINITY)), high(prefix.value), last(prefix.last) {}

  // The bounds for a vector of entries from `first` on.
  Float at(int64_t first) const {
    if (first + W <= last + 1) return set(low);
    if (first > last) return set(high);
    float each[W];
    for (int64_t i = 0; i < W; i++) each[i] = first + i <= last ? low : high;
    return load(each);
  }
};

}  // namespace VARIANT::logits
