// Codes of a packed weight (see Product), eight of each output at a time: the first four, and the others.
#pragma once
#include "tile.h"

namespace VARIANT::gemm {

constexpr int64_t OF_WORDS = 4 * PANEL;  // bytes of a word of each output of a panel

// Each way of storing codes: CODES; whether they have six bits at most; and a place among those of W outputs, which begins at
// `from`, the first of a span: next() reads eight and goes on.
struct Bytes {
  static constexpr Codes CODES = Codes::bytes;
  static constexpr bool NARROW = false;
  const uint8_t *from;
  Bytes(const Coding &, const uint8_t *from) : from(from) {}
  template <int V> void next(Quads (&front)[V], Quads (&back)[V]) {
    for (int v = 0; v < V; v++) {
      front[v] = load_quads(from + 4 * W * v);
      back[v] = load_quads(from + OF_WORDS + 4 * W * v);
    }
    from += 2 * OF_WORDS;
  }
};

// Codes of few bits that were widened to bytes before.
struct Widened : Bytes {
  static constexpr bool NARROW = true;
  using Bytes::Bytes;
};

struct Fours {
  static constexpr Codes CODES = Codes::fours;
  static constexpr bool NARROW = true;
  const uint8_t *from;
  Fours(const Coding &, const uint8_t *from) : from(from) {}
  template <int V> void next(Quads (&front)[V], Quads (&back)[V]) {
    for (int v = 0; v < V; v++) {
      Quads both = load_quads(from + 4 * W * v);
      front[v] = low_halves(both), back[v] = high_halves(both);
    }
    from += OF_WORDS;
  }
};

// Four bits, and HIGH others behind those of the span.
template <int HIGH> struct Higher {
  static constexpr Codes CODES = HIGH == 1 ? Codes::fives : Codes::sixes;
  static constexpr bool NARROW = true;
  static constexpr uint8_t MASK = ((1 << HIGH) - 1) << 4;
  const uint8_t *from;
  int number = 0;  // of the eight in its span
  Higher(const Coding &, const uint8_t *from) : from(from) {}
  template <int V> void next(Quads (&front)[V], Quads (&back)[V]) {
    int before = 2 * HIGH * number;  // bits of each byte
    for (int v = 0; v < V; v++) {
      Quads both = load_quads(from + number * OF_WORDS + 4 * W * v);
      Quads high = bits_down(load_quads(from + (4 + before / 8) * OF_WORDS + 4 * W * v), before % 8);
      front[v] = joined<MASK>(low_halves(both), bits_up<4>(high));
      back[v] = joined<MASK>(high_halves(both), bits_up<4 - HIGH>(high));
    }
    if (++number == SPAN / 8) number = 0, from += (4 + HIGH) * OF_WORDS;
  }
};
using Fives = Higher<1>;
using Sixes = Higher<2>;

struct Levels {
  static constexpr Codes CODES = Codes::levels;
  static constexpr bool NARROW = false;
  Fours numbers;
  Table table;
  Levels(const Coding &coding, const uint8_t *from) : numbers(coding, from), table(load_table(coding.table)) {}
  template <int V> void next(Quads (&front)[V], Quads (&back)[V]) {
    numbers.next(front, back);
    for (int v = 0; v < V; v++) front[v] = look_up(table, front[v]), back[v] = look_up(table, back[v]);
  }
};

inline bool is_narrow(Codes codes) { return codes != Codes::bytes && codes != Codes::levels; }

}  // namespace VARIANT::gemm
