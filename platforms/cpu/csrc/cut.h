// Finds the first `keep` entries of a row without sorting. The value of the last one is found by bisecting the range of floats
// and counting the entries above. Only blocks are counted whose largest entry is at least that of the keep-th block.
#pragma once
#include <cstring>

#include "logits.h"

namespace VARIANT::cut {

using namespace simd;
using logits::Row;

// Maps floats to integers in the same order.
inline uint32_t place_of(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits >> 31 ? ~bits : bits | 0x80000000u;
}
inline float at_place(uint32_t place) {
  uint32_t bits = place >> 31 ? place & 0x7fffffffu : ~place;
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

// The largest float, between `low` and `high`, for which at least `keep` entries are not below it. That must hold for `low`.
// above(x): the number of entries above x.
template <class Above> inline float largest_kept(int64_t keep, float low, float high, Above &&above) {
  uint32_t from = place_of(low), to = place_of(high);
  while (from < to) {
    uint32_t middle = to - (to - from) / 2;
    if (above(std::nextafter(at_place(middle), -INFINITY)) >= keep)
      from = middle;
    else
      to = middle - 1;
  }
  return at_place(from);
}

template <class T> inline void prefix_of(const Logits &logits, int64_t keep, int32_t *blocks, Prefix &prefix) {
  const float *largest = logits.largest + prefix.row * logits.width;
  Row<T> row(logits, prefix.row);
  float peak = logits.peak[prefix.row], low = -INFINITY;
  if (keep <= logits.blocks)
    low = largest_kept(keep, low, peak, [&](float x) {
      int64_t found = 0;
      for (int64_t i = 0; i < logits.width; i += W) found += count_above(load(largest + i), set(x));
      return found;
    });
  int64_t number = 0;
  for (int64_t block = 0; block < logits.blocks; block++)
    if (largest[block] >= low) blocks[number++] = (int32_t)block;
  auto above = [&](float x) {
    int64_t found = 0;
    for (int64_t i = 0; i < number && found < keep; i++)
      row.scaled(blocks[i], [&](int64_t, Float entries) { found += count_above(entries, set(x)); });
    return found;
  };
  prefix.value = largest_kept(keep, low, peak, above);
  int64_t equal = keep - above(prefix.value);  // entries equal to the value that belong to the prefix
  for (int64_t i = 0; equal > 0; i++) {
    int64_t first = blocks[i] * BLOCK, end = first + BLOCK < logits.vocab ? first + BLOCK : logits.vocab;
    if (largest[blocks[i]] < prefix.value) continue;
    for (int64_t at = first; at < end && equal > 0; at++)
      if (row.entry(at) == prefix.value && --equal == 0) prefix.last = at;
  }
}

template <class T> inline void cut(const Cutting &task, int64_t first, int64_t last) {
  for (int64_t i = first; i < last; i++)
    if (task.keep[i] > 0 && task.keep[i] < task.logits->vocab)
      prefix_of<T>(*task.logits, task.keep[i], task.blocks + i * task.logits->width, task.prefixes[i]);
}

}  // namespace VARIANT::cut
