// Counts the log probabilities above a token's, and lists the entries in a prefix.
#pragma once
#include "logits.h"

namespace VARIANT::rank {

using namespace simd;
using logits::Row;

template <class T> inline void rank(const Ranking &task, int64_t first, int64_t last) {
  const Logits &logits = *task.logits;
  for (int64_t number = first; number < last; number++) {
    float peak = logits.peak[number], log_sum = task.log_sum[number];
    if (!std::isfinite(peak)) continue;
    Row<T> row(logits, number);
    const float *largest = logits.largest + number * logits.width;
    float own = row.entry(task.tokens[number]) - peak - log_sum;
    const Prefix &prefix = task.prefixes[number];
    int32_t *ids = task.ids + number * (1 + task.number) + 1;
    int64_t above = 0, listed = 0;
    for (int64_t block = 0; block < logits.blocks; block++) {
      if (largest[block] - peak - log_sum > own)
        row.scaled(block, [&](int64_t, Float x) {
          above += count_above(sub(sub(x, set(peak)), set(log_sum)), set(own));
        });
      if (!(largest[block] >= prefix.value)) continue;
      int64_t at = block * BLOCK, end = at + BLOCK < logits.vocab ? at + BLOCK : logits.vocab;
      for (; at < end && listed < task.number; at++)
        if (entries::in(prefix, row.entry(at), at)) ids[listed++] = (int32_t)at;
    }
    task.ranks[number] = (int32_t)above + 1;
  }
}

}  // namespace VARIANT::rank
