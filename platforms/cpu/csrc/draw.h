// Samples from a prefix, and computes the mass of a prefix.
#pragma once
#include "exponent.h"
#include "logits.h"
#include "noise.h"

namespace VARIANT::draw {

using namespace simd;
using logits::Bounds;
using logits::Row;

// Calls each(block, its largest entry) for the blocks of a stretch that have entries in the prefix.
template <class Each>
inline void blocks_of(const Logits &logits, int64_t row, int64_t stretch, const Bounds &bounds, Each &&each) {
  if (!(logits.peaks[row * logits.stretches + stretch] > bounds.low)) return;
  const float *largest = logits.largest + row * logits.width;
  int64_t from = stretch * STRETCH, to = from + STRETCH < logits.blocks ? from + STRETCH : logits.blocks;
  for (int64_t block = from; block < to; block++)
    if (largest[block] > bounds.low) each(block, largest[block]);
}

// Entries that no noise could lift above the best so far are not hashed. Logarithms are only computed for the few whose bound is
// above it.
template <class T>
inline Found best_of(const Logits &logits, const Ticket &ticket, const Prefix &among, int64_t stretch) {
  Row<T> row(logits, among.row);
  Bounds bounds(among);
  Found best{ticket.floor, -1, 0.0f};
  blocks_of(logits, among.row, stretch, bounds, [&](int64_t block, float largest) {
    if (!(largest + MOST_NOISE > best.score)) return;
    row.scaled(block, [&](int64_t first, Float x) {
      if (!any_above(add(x, set(MOST_NOISE)), set(best.score))) return;
      Whole bits = noise::bits(ticket, first);
      Float limit = choose(x, bounds.at(first), add(x, noise::limit(bits)), set(-INFINITY));
      if (!any_above(limit, set(best.score))) return;
      float values[W], limits[W];
      int32_t random[W];
      store(values, x), store(limits, limit), store(random, bits);
      for (int i = 0; i < W; i++) {
        if (!(limits[i] > best.score)) continue;
        float score = values[i] + noise::of(random[i]);
        if (score > best.score) best = {score, (int32_t)(first + i), values[i]};
      }
    });
  });
  return best;
}

template <class T> inline void draw(const Drawing &task, int64_t first, int64_t last) {
  int64_t stretches = task.logits->stretches;
  for (int64_t item = first; item < last; item++)
    task.found[item] =
        best_of<T>(*task.logits, task.tickets[item / stretches], task.among[item / stretches], item % stretches);
}

template <class T> inline void weigh(const Weighing &task, int64_t first, int64_t last) {
  const Logits &logits = *task.logits;
  for (int64_t item = first; item < last; item++) {
    const Prefix &prefix = task.prefixes[item / logits.stretches];
    Row<T> row(logits, prefix.row);
    Bounds bounds(prefix);
    Float peak = set(logits.peak[prefix.row]);
    double total = 0.0;
    blocks_of(logits, prefix.row, item % logits.stretches, bounds, [&](int64_t block, float) {
      Float mass = zero();
      row.scaled(block, [&](int64_t at, Float x) {
        mass = add(mass, choose(x, bounds.at(at), exp(sub(x, peak)), zero()));
      });
      total += sum(mass);
    });
    task.mass[item] = total;
  }
}

}  // namespace VARIANT::draw
