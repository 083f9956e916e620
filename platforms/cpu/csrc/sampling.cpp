#include "sampling.h"

#define VARIANT common  // does not depend on the instruction set
#include "entries.h"
#include "hash.h"
#include "threads.h"

namespace {

using sampling::Room;

// The first entry of a row that equals its peak.
template <class T> int32_t first_largest(const Logits &logits, int64_t row) {
  float peak = logits.peak[row];
  auto there = [&](float x) { return peak != peak ? x != x : x == peak; };
  int64_t stretch = 0;
  while (stretch + 1 < logits.stretches && !there(logits.peaks[row * logits.stretches + stretch])) stretch++;
  int64_t block = stretch * STRETCH;
  while (block + 1 < logits.blocks && !there(logits.largest[row * logits.width + block])) block++;
  int64_t number = block * BLOCK;
  while (number + 1 < logits.vocab && !there(common::entries::entry<T>(logits, row, number))) number++;
  return (int32_t)number;
}

// The rows that remain to be sampled, those with top_p first.
struct Draws {
  const Sampling &task;
  Logits logits;
  Prefix *among, *before;  // the remaining entries of each row; the entries before the one sampled
  Ticket *tickets;
  int64_t *keep;
  Found *found, *best;
  double *mass, *sums;
  int32_t *blocks;
  int64_t open = 0, limited = 0;  // limited: the number of rows with top_p

  Draws(const Sampling &task, Room &room) : task(task), logits(sampling::laid(task, task.temperature, room)) {
    if (!task.temperature) return;
    int64_t rows = task.rows;
    among = room.take<Prefix>(rows), before = room.take<Prefix>(rows), tickets = room.take<Ticket>(rows);
    best = room.take<Found>(rows), found = room.take<Found>(rows * logits.stretches);
    keep = room.take<int64_t>(rows), sums = room.take<double>(rows);
    mass = room.take<double>(rows * logits.stretches), blocks = room.take<int32_t>(rows * logits.width);
  }

  // A row whose largest entry is infinite or NaN takes that entry.
  bool is_drawn(int64_t row) const {
    return task.temperature && task.temperature[row] > 0.0f && std::isfinite(logits.peak[row]);
  }

  bool is_limited(int64_t row) const { return task.top_k && task.top_p[row] < 1.0f; }

  void collect(bool limited) {
    for (int64_t row = 0; row < task.rows; row++) {
      if (!is_drawn(row) || is_limited(row) != limited) continue;
      auto keys = common::hash::keys(task.seed[row], task.position[row]);
      float floor = std::nextafter(logits.peak[row] + LEAST_NOISE, -INFINITY);
      tickets[open] = Ticket{floor, keys.key, keys.other, limited ? task.top_p[row] : 1.0f, 0.0};
      among[open] = Prefix{row, -INFINITY, logits.vocab - 1};
      keep[open++] = task.top_k ? task.top_k[row] : 0;
    }
  }

  // Drops entries less likely than min_p times the most likely, if that leaves fewer than top_k does.
  void apply_min_p(Prefix &prefix) const {
    float min_p = task.min_p[prefix.row], peak = logits.peak[prefix.row];
    if (!(min_p > 0.0f)) return;
    double least = peak + (min_p < 1.0f ? std::log((double)min_p) : 0.0);
    auto value = (float)least;
    if (value < least) value = std::nextafter(value, INFINITY);
    if (value > prefix.value) prefix = Prefix{prefix.row, value, logits.vocab - 1};
  }

  void filter(const Kernels &kernels) {
    threads::run(kernels.cut[task.entry], Cutting{&logits, among, keep, blocks}, open, 1);
    for (int64_t i = 0; i < open; i++) apply_min_p(among[i]);
    sampling::weigh(kernels.weigh[task.entry], logits, among, limited, mass, sums);
    for (int64_t i = 0; i < limited; i++) tickets[i].total = sums[i];
  }

  // Samples one token for each remaining row. The entries before it show whether top_p keeps it. If not, it keeps none behind it
  // either, so the row is sampled again from the entries before; their noise stays the same.
  void round(const Kernels &kernels) {
    threads::run(kernels.draw[task.entry], Drawing{&logits, among, tickets, found}, open * logits.stretches,
                 sampling::grain_of(logits, open));
    for (int64_t i = 0; i < open; i++) {
      best[i] = Found{-INFINITY, -1, 0.0f};
      for (int64_t s = 0; s < logits.stretches; s++) {
        const Found &one = found[i * logits.stretches + s];
        if (one.entry >= 0 && (best[i].entry < 0 || one.score > best[i].score)) best[i] = one;
      }
      task.tokens[among[i].row] = best[i].entry;
      before[i] = Prefix{among[i].row, best[i].value, best[i].entry - 1};
    }
    sampling::weigh(kernels.weigh[task.entry], logits, before, limited, mass, sums);
    int64_t left = 0;
    for (int64_t i = 0; i < limited; i++) {
      bool kept = sums[i] <= 0.0 || !(sums[i] >= tickets[i].top_p * tickets[i].total);
      if (kept) continue;
      among[left] = before[i];
      tickets[left++] = tickets[i];
    }
    open = limited = left;
  }
};

}  // namespace

namespace sampling {

void survey(Part<Logits> part, const Logits &logits) {
  threads::run(part, logits, logits.rows * logits.stretches, grain_of(logits, logits.rows));
  for (int64_t row = 0; row < logits.rows; row++) {
    float peak = -INFINITY;
    for (int64_t s = 0; s < logits.stretches; s++)
      peak = common::entries::larger(peak, logits.peaks[row * logits.stretches + s]);
    logits.peak[row] = peak;
  }
}

void weigh(Part<Weighing> part, const Logits &logits, const Prefix *prefixes, int64_t number, double *mass, double *sums) {
  threads::run(part, Weighing{&logits, prefixes, mass}, number * logits.stretches, grain_of(logits, number));
  for (int64_t i = 0; i < number; i++) {
    sums[i] = 0.0;
    for (int64_t s = 0; s < logits.stretches; s++) sums[i] += mass[i * logits.stretches + s];
  }
}

void sample(const Kernels &kernels, const Sampling &task) {
  Room counted(nullptr);
  Draws(task, counted);
  Room memory(room_of(counted.used));
  Draws draws(task, memory);
  survey(kernels.survey[task.entry], draws.logits);
  for (int64_t row = 0; row < task.rows; row++)
    if (!draws.is_drawn(row))
      task.tokens[row] = task.entry == float_entry ? first_largest<float>(draws.logits, row)
                                                   : first_largest<bf16>(draws.logits, row);
  if (!task.temperature) return;
  draws.collect(true);
  draws.limited = draws.open;
  draws.collect(false);
  if (task.top_k) draws.filter(kernels);
  while (draws.open) draws.round(kernels);
}

}  // namespace sampling
