// Looks up rows by number, in a table or a packed weight.
#pragma once
#include <cstring>

#include "numbers.h"
#include "weights/scales.h"
#include "weights/coded.h"

namespace VARIANT::lookup {

using namespace simd;

template <class T> inline void scaled(const T *from, int64_t n, float scale, T *to) {
  Float factor = set(scale);
  int64_t whole = n / W * W, rest = n - whole;
  for (int64_t i = 0; i < whole; i += W) numbers::put(to + i, mul(numbers::take(from + i), factor));
  if (rest) numbers::put_some(to + whole, mul(numbers::take_some(from + whole, rest), factor), rest);
}

template <class T> inline void rows(const Lookup &task, int64_t first, int64_t last) {
  for (int64_t t = first; t < last; t++) {
    int64_t id = task.boundaries ? task.ids[t] >= task.boundaries[t] : task.ids[t];
    const T *from = (const T *)task.table + id * task.stride;
    T *to = (T *)task.out + t * task.n;
    if (task.scale == 1.0f)
      std::memcpy(to, from, task.n * sizeof(T));
    else
      scaled(from, task.n, task.scale, to);
  }
}

// bf16 words are copied unchanged.
struct Bf16 {
  using Result = bf16;
  static void row(const PackedLookup &task, int64_t row, bf16 *to) {
    constexpr int64_t APART = 4 * PANEL;
    int64_t words = task.k / 2;
    const uint8_t *at = (const uint8_t *)task.packed + row / PANEL * ((task.k + 1) / 2) * APART + row % PANEL * 4;
    for (int64_t i = 0; i < words; i++) std::memcpy(to + 2 * i, at + i * APART, 4);
    if (task.k % 2) std::memcpy(to + task.k - 1, at + words * APART, sizeof(bf16));
    if (task.factor != 1.0f) scaled(to, task.k, task.factor, to);
  }
};

struct Floats {
  using Result = float;
  static void row(const PackedLookup &task, int64_t row, float *to) {
    const float *at = (const float *)task.packed + row / PANEL * task.k * PANEL + row % PANEL;
    for (int64_t i = 0; i < task.k; i++) to[i] = at[i * PANEL] * task.factor;
  }
};

struct Coded {
  using Result = bf16;
  static constexpr int64_t STRETCH = 256;  // elements whose scales are read at a time: whole groups or parts of one
  static constexpr int64_t LEAST = 8;      // elements that share a scale

  // The number-th code of a span; word: the first of an output.
  static int32_t code(const Coding &coding, const uint8_t *word, int64_t number) {
    int64_t four = number / 4, byte = number % 4;
    if (coding.codes == Codes::bytes) return word[four * gemm::OF_WORDS + byte];
    int32_t low = word[four / 2 * gemm::OF_WORDS + byte] >> four % 2 * 4 & 15;
    if (coding.codes == Codes::levels) return coding.table[low];
    int64_t high = words_of(coding.codes) - 4;
    if (!high) return low;
    int32_t bits = word[(4 + four * high / 8) * gemm::OF_WORDS + byte] >> four * high % 8 & ((1 << high) - 1);
    return low | bits << 4;
  }

  static void row(const PackedLookup &task, int64_t row, bf16 *to) {
    float some[STRETCH];
    for (int64_t first = 0; first < task.k; first += STRETCH) {
      int64_t count = task.k - first < STRETCH ? task.k - first : STRETCH, i = 0;
      read(task, row, first, count, some);
      for (; i + W <= count; i += W) store_bf16(to + first + i, mul(load(some + i), set(task.factor)));
      for (; i < count; i++) to[first + i] = single::rounded(some[i] * task.factor);
    }
  }

  // Minimums are subtracted apart, so that no compiler makes one operation of both.
  static void read(const PackedLookup &task, int64_t row, int64_t first, int64_t count, float *to) {
    const Coding &coding = task.coding;
    int64_t of_span = words_of(coding.codes) * gemm::OF_WORDS, panel = row / PANEL, place = row % PANEL;
    const uint8_t *words = (const uint8_t *)task.packed + (panel * gemm::spans_of(task.k) + first / SPAN) * of_span + 4 * place;
    alignas(64) float scale[STRETCH / LEAST][PANEL], minimum[STRETCH / LEAST][PANEL];
    gemm::Scales scales{nullptr, nullptr};
    if (coding.scaling != Scaling::by_row)
      scales = gemm::read_scales(coding, panel, task.k, LEAST, first / LEAST, count / LEAST, scale[0], minimum[0]);
    for (int64_t i = 0; i < count; i++) {
      float factor = scales.scale ? scale[i / LEAST][place] : ((const float *)coding.scales)[row];
      to[i] = (float)(code(coding, words + i / SPAN * of_span, i % SPAN) - coding.offset) * factor;
    }
    if (scales.minimum)
      for (int64_t i = 0; i < count; i++) to[i] -= minimum[i / LEAST][place];
  }
};

template <class Kind> void packed_rows(const PackedLookup &task, int64_t first, int64_t last) {
  for (int64_t t = first; t < last; t++) {
    using Result = typename Kind::Result;
    Result *to = (Result *)task.out + t * task.out_stride;
    int64_t row = task.ids[t] - task.start;
    if (row >= 0 && row < task.n)
      Kind::row(task, row, to);
    else
      std::memset(to, 0, task.k * sizeof(Result));
  }
}

}  // namespace VARIANT::lookup
