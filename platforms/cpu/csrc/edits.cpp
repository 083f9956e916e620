#include "edits.h"

#include <cmath>
#include <cstring>

#define VARIANT common  // does not depend on the instruction set
#include "room.h"
#include "single.h"
#include "threads.h"

namespace {

constexpr int64_t PART = 1 << 13;  // entries of a row that are copied at once
constexpr int64_t FEW = 1 << 12;   // tokens of histories for which waking a thread does not pay

// -inf as bits, of bf16 and of float.
template <class Bits> constexpr Bits FORBIDDEN;
template <> constexpr uint16_t FORBIDDEN<uint16_t> = 0xff80;
template <> constexpr uint32_t FORBIDDEN<uint32_t> = 0xff800000;

// Entries of a row, in the smallest vector that processors of an architecture have; compilers know how to make it.
template <class Bits> struct Lanes {
  static constexpr int64_t NUMBER = 16 / sizeof(Bits);
  typedef Bits Vector __attribute__((vector_size(16), aligned(sizeof(Bits)), may_alias));
};

// Keeps the entries whose bit of `allowed` is set, the lowest first. Without a branch, because it cannot be predicted which tokens
// a grammar allows.
template <class Bits> inline void keep(Bits *entries, uint32_t allowed) {
  using Vector = typename Lanes<Bits>::Vector;
  Vector bit, none;
  for (int64_t i = 0; i < Lanes<Bits>::NUMBER; i++) bit[i] = (Bits)(Bits(1) << i), none[i] = FORBIDDEN<Bits>;
  for (int64_t at = 0; at < 32; at += Lanes<Bits>::NUMBER) {
    auto *here = (Vector *)(entries + at);
    Bits these = allowed >> at;
    Vector kept = (Vector)((these & bit) == bit);
    *here = (*here & kept) | (none & ~kept);
  }
}

template <class Bits> void mask_rows(const Masking &task, int64_t first, int64_t last) {
  int64_t words = (task.vocab + 31) / 32;
  for (int64_t i = first; i < last; i++) {
    Bits *row = (Bits *)task.logits + task.rows[i] * task.stride;
    for (int64_t word = 0; word < words; word++) {
      auto allowed = (uint32_t)task.bits[i * words + word];
      if (allowed == UINT32_MAX) continue;
      Bits *entries = row + 32 * word;
      int64_t left = task.vocab - 32 * word;
      if (left >= 32)
        keep(entries, allowed);
      else
        for (int64_t bit = 0; bit < left; bit++) entries[bit] = allowed >> bit & 1 ? entries[bit] : FORBIDDEN<Bits>;
    }
  }
}

inline int64_t parts_of(const Taking &task) { return (task.vocab + PART - 1) / PART; }

template <class T> void take_parts(const Taking &task, int64_t first, int64_t last) {
  int64_t parts = parts_of(task);
  for (int64_t item = first; item < last; item++) {
    int64_t i = item / parts, from = item % parts * PART, left = task.vocab - from;
    int64_t number = left < PART ? left : PART;
    const T *entry = (const T *)task.logits + task.rows[i] * task.stride + from;
    float *out = task.out + i * task.vocab + from;
    if constexpr (sizeof(T) == sizeof(float))
      std::memcpy(out, entry, number * sizeof(float));
    else
      for (int64_t j = 0; j < number; j++) out[j] = common::single::widened(entry[j]);
  }
}

inline const int32_t *tokens_of(const History &history, int64_t row) {
  return history.tokens + history.rows[row] * history.stride;
}

// Whether the answer of a row ends in a prefix.
bool ends_in(const History &history, int64_t row, const int32_t *prefix, int64_t length) {
  const int32_t *tokens = tokens_of(history, row);
  for (int64_t i = length - 1; i >= 0 && prefix[i] >= 0; i--) {
    int64_t place = history.known[row] - length + i;
    if (place < history.prompt[row] || tokens[place] != prefix[i]) return false;
  }
  return true;
}

void penalise_rows(const Penalising &task, int64_t first, int64_t last) {
  constexpr int32_t DONE = -1;
  auto *times = (int32_t *)room_of(task.vocab * (int64_t)sizeof(int32_t));  // only the entries of known tokens are used
  for (int64_t row = first; row < last; row++) {
    float presence = task.presence[row], frequency = task.frequency[row], repetition = task.repetition[row];
    if (presence == 0.0f && frequency == 0.0f && repetition == 1.0f) continue;
    const int32_t *tokens = tokens_of(task.history, row);
    int32_t known = task.history.known[row];
    float *logits = task.logits + row * task.stride;
    for (int32_t i = 0; i < known; i++) times[tokens[i]] = 0;
    for (int32_t i = task.history.prompt[row]; i < known; i++) times[tokens[i]]++;
    for (int32_t i = 0; i < known; i++) {
      int32_t &found = times[tokens[i]];
      if (found == DONE) continue;
      float &logit = logits[tokens[i]];
      float repeated = logit > 0.0f ? logit / repetition : logit * repetition;
      if (found) repeated = repeated - frequency * (float)found - presence;
      logit = repeated;
      found = DONE;
    }
  }
}

}  // namespace

namespace edits {

void mask(const Masking &task) {
  threads::run(task.entry == float_entry ? mask_rows<uint32_t> : mask_rows<uint16_t>, task, task.number);
}

void take(const Taking &task) {
  int64_t items = task.number * parts_of(task);
  int64_t grain = task.number * task.vocab <= 2 * PART ? items : 1;
  threads::run(task.entry == float_entry ? take_parts<float> : take_parts<bf16>, task, items, grain);
}

// On the calling thread: edits are few, and several of one logit must be made one after the other.
void edit(const Editing &task) {
  for (int64_t e = 0; e < task.number; e++) {
    int64_t row = task.row[e];
    if (task.history.known[row] >= task.until[e]) continue;
    if (!ends_in(task.history, row, task.prefix + e * task.length, task.length)) continue;
    task.logits[row * task.stride + task.token[e]] += task.value[e];
  }
}

void penalise(const Penalising &task) {
  int64_t tokens = 0;
  for (int64_t row = 0; row < task.rows; row++) tokens += task.history.known[row];
  threads::run(penalise_rows, task, task.rows, tokens <= FEW ? task.rows : 1);
}

}  // namespace edits
