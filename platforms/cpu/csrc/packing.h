// Packs weights in the order in which products read them; kernels.h has the layout for each kind. Item: a panel.
//
// All panels consist of four-byte words, word i of the 32 rows side by side. Packing moves words; a kind defines how many words a
// row has, and how a word is converted.
#pragma once
#include <cstring>

#include "kernels.h"

namespace packing {

// A row's elements as stored: bf16, int8, or int4 in pairs, the first of a pair in the low half, with 8 added.
struct Weight {
  const void *elements;
  int64_t stride;  // of rows, in bytes
  void *packed;
  int64_t n, k;
};

// NOTHING: a stored word of zeros.
struct Bf16 {
  static constexpr uint32_t NOTHING = 0;
  static int64_t bytes(int64_t k) { return 2 * k; }
  static uint32_t word(uint32_t stored) { return stored; }
};

struct Int8 {
  static constexpr uint32_t NOTHING = 0;
  static int64_t bytes(int64_t k) { return k; }
  static uint32_t word(uint32_t stored) { return stored ^ 0x80808080; }
};

struct Int4 {
  static constexpr uint32_t NOTHING = 0x88888888;
  static int64_t bytes(int64_t k) { return k / 2; }
  // Elements 0 to 3 go to the low halves and 4 to 7 to the high ones; they are stored in the first two and the last two bytes.
  static uint32_t word(uint32_t stored) {
    uint32_t front = stored & 0xffff, back = stored >> 16;
    uint32_t even = (front & 0x0f0f) | (back & 0x0f0f) << 4, odd = (front >> 4 & 0x0f0f) | (back & 0xf0f0);
    return (even & 0xff) | (odd & 0xff) << 8 | (even & 0xff00) << 8 | (odd & 0xff00) << 16;
  }
};

// Packs one word of each row of a panel, of which `rows` exist. bytes: of the word that exist.
template <class Kind> void put(const char *from, int64_t stride, int64_t rows, size_t bytes, uint32_t *to) {
  for (int64_t row = 0; row < rows; row++) {
    uint32_t stored = Kind::NOTHING;
    std::memcpy(&stored, from + row * stride, bytes);
    to[row] = Kind::word(stored);
  }
  for (int64_t row = rows; row < PANEL; row++) to[row] = Kind::word(Kind::NOTHING);
}

template <class Kind> void pack(const Weight &task, int64_t first, int64_t last) {
  int64_t bytes = Kind::bytes(task.k), whole = bytes / 4, words = (bytes + 3) / 4;
  for (int64_t panel = first; panel < last; panel++) {
    uint32_t *to = (uint32_t *)task.packed + panel * words * PANEL;
    const char *from = (const char *)task.elements + panel * PANEL * task.stride;
    int64_t left = task.n - panel * PANEL, rows = left < PANEL ? left : PANEL;
    for (int64_t word = 0; word < whole; word++) put<Kind>(from + 4 * word, task.stride, rows, 4, to + word * PANEL);
    if (whole < words) put<Kind>(from + 4 * whole, task.stride, rows, bytes % 4, to + whole * PANEL);
  }
}

constexpr Part<Weight> BY_KIND[] = {pack<Bf16>, pack<Int8>, pack<Int4>};

}  // namespace packing
