// Packs weights in the order in which products read them; kernels.h has the layouts. Item: a panel.
//
// All panels consist of four-byte words, word i of the 32 rows side by side.
#pragma once
#include <cstring>

#include "kernels.h"

namespace packing {

struct Weight {
  const void *elements;
  int64_t stride;  // of rows, in bytes
  void *packed;
  int64_t n, k;
  int64_t size;    // of an element, if all have the same, in bytes

  const uint8_t *row(int64_t number) const { return (const uint8_t *)elements + number * stride; }
};

// bf16, two elements a word, or float.
inline void pack(const Weight &task, int64_t first, int64_t last) {
  int64_t bytes = task.size * task.k, words = (bytes + 3) / 4;
  for (int64_t panel = first; panel < last; panel++) {
    auto *to = (uint32_t *)task.packed + panel * words * PANEL;
    int64_t left = task.n - panel * PANEL, rows = left < PANEL ? left : PANEL;
    for (int64_t word = 0; word < words; word++, to += PANEL)
      for (int64_t row = 0; row < PANEL; row++) {
        to[row] = 0;
        size_t there = bytes - 4 * word < 4 ? 2 : 4;
        if (row < rows) std::memcpy(to + row, task.row(panel * PANEL + row) + 4 * word, there);
      }
  }
}

// Codes as they are stored before: int8, which has no offset; two to a byte, the first in the low half; or one to a byte.
enum class Stored : int32_t { with_sign, pairs, bytes };

struct CodedWeight {
  Weight weight;
  Codes codes;
  Stored stored;
};

// Reads the codes of a span of a row, of which `count` elements exist.
inline void read(Stored stored, const uint8_t *row, int64_t from, int64_t count, uint8_t (&to)[SPAN]) {
  std::memset(to, 0, SPAN);
  if (stored == Stored::bytes) {
    std::memcpy(to, row + from, count);
  } else if (stored == Stored::with_sign) {
    for (int64_t i = 0; i < count; i++) to[i] = row[from + i] ^ 0x80;
  } else {
    for (int64_t i = 0; i < count; i++) to[i] = row[(from + i) / 2] >> (from + i) % 2 * 4 & 15;
  }
}

// Writes them as words, each PANEL words after the one before.
inline void write(Codes codes, const uint8_t (&from)[SPAN], uint32_t *to) {
  auto put = [&](const uint8_t (&four)[4]) {
    std::memcpy(to, four, 4);
    to += PANEL;
  };
  if (codes == Codes::bytes)
    for (int i = 0; i < SPAN; i += 4) put({from[i], from[i + 1], from[i + 2], from[i + 3]});
  else
    for (int i = 0; i < SPAN; i += 8) {
      uint8_t pairs[4];
      for (int j = 0; j < 4; j++) pairs[j] = (uint8_t)((from[i + j] & 15) | from[i + 4 + j] << 4);
      put(pairs);
    }
  int high = codes == Codes::fives ? 1 : codes == Codes::sixes ? 2 : 0;  // bits beside four
  for (int word = 0; word < high; word++) {
    uint8_t bits[4] = {};
    for (int i = 0; i < 8 / high; i++)
      for (int j = 0; j < 4; j++) bits[j] |= (uint8_t)(from[(word * 8 / high + i) * 4 + j] >> 4 << i * high);
    put(bits);
  }
}

inline void pack_codes(const CodedWeight &task, int64_t first, int64_t last) {
  const Weight &weight = task.weight;
  int64_t spans = (weight.k + SPAN - 1) / SPAN, words = words_of(task.codes);
  for (int64_t panel = first; panel < last; panel++)
    for (int64_t row = 0; row < PANEL; row++) {
      auto *to = (uint32_t *)weight.packed + panel * spans * words * PANEL + row;
      int64_t number = panel * PANEL + row;
      for (int64_t span = 0; span < spans; span++, to += words * PANEL) {
        uint8_t codes[SPAN] = {};
        int64_t left = weight.k - span * SPAN;
        if (number < weight.n) read(task.stored, weight.row(number), span * SPAN, left < SPAN ? left : SPAN, codes);
        write(task.codes, codes, to);
      }
    }
}

}  // namespace packing
