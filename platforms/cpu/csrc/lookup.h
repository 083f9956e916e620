// Looks up rows by number, in a table or a packed weight.
#pragma once
#include <cstring>

#include "kernels.h"

namespace VARIANT::lookup {

using namespace simd;

inline void scaled(const bf16 *from, int64_t n, float scale, bf16 *to) {
  Float factor = set(scale);
  int64_t i = 0;
  for (; i + W <= n; i += W) store_bf16(to + i, mul(load_bf16(from + i), factor));
  for (; i < n; i++) to[i] = single::rounded(single::widened(from[i]) * scale);
}

inline void rows(const Lookup &task, int64_t first, int64_t last) {
  for (int64_t t = first; t < last; t++) {
    const bf16 *from = task.table + task.ids[t] * task.stride;
    bf16 *to = task.out + t * task.n;
    if (task.scale == 1.0f)
      std::memcpy(to, from, task.n * sizeof(bf16));
    else
      scaled(from, task.n, task.scale, to);
  }
}

constexpr int64_t STRETCH = 256;  // elements that are converted to floats at a time

// Elements of a packed row: read() converts those from `first` (a multiple of 8, like STRETCH) to before `last`. at: where the
// row's own elements begin in its panel.
struct Int8 {
  static int64_t bytes(int64_t k) { return (k + 3) / 4 * 4; }
  static void read(const PackedLookup &task, const uint8_t *at, int64_t row, int64_t first, int64_t last, float *to) {
    float scale = ((const float *)task.scale)[row];
    for (int64_t i = first; i < last; i++) *to++ = (float)(at[i / 4 * 4 * PANEL + i % 4] - 128) * scale;
  }
};

struct Int4 {
  static int64_t bytes(int64_t k) { return k / 2; }
  static void read(const PackedLookup &task, const uint8_t *at, int64_t row, int64_t first, int64_t last, float *to) {
    int64_t groups = task.k / task.group;
    const bf16 *scales = (const bf16 *)task.scale + row / PANEL * groups * PANEL + row % PANEL;
    for (int64_t i = first; i < last; i += 8) {
      float scale = single::widened(scales[i / task.group * PANEL]);
      const uint8_t *four = at + i / 8 * 4 * PANEL;
      for (int half = 0; half < 8; half += 4)
        for (int j = 0; j < 4; j++) *to++ = (float)((four[j] >> half & 15) - 8) * scale;
    }
  }
};

template <class Kind> void row_of(const PackedLookup &task, int64_t row, bf16 *to) {
  const uint8_t *panel = (const uint8_t *)task.packed + row / PANEL * PANEL * Kind::bytes(task.k);
  const uint8_t *at = panel + row % PANEL * 4;
  Float factor = set(task.factor);
  float some[STRETCH];
  for (int64_t first = 0; first < task.k; first += STRETCH) {
    int64_t count = task.k - first < STRETCH ? task.k - first : STRETCH, i = 0;
    Kind::read(task, at, row, first, first + count, some);
    for (; i + W <= count; i += W) store_bf16(to + first + i, mul(load(some + i), factor));
    for (; i < count; i++) to[first + i] = single::rounded(some[i] * task.factor);
  }
}

// bf16 words are copied unchanged.
struct Bf16 {};
template <> inline void row_of<Bf16>(const PackedLookup &task, int64_t row, bf16 *to) {
  constexpr int64_t APART = 4 * PANEL;
  int64_t words = task.k / 2;
  const uint8_t *at = (const uint8_t *)task.packed + row / PANEL * ((task.k + 1) / 2) * APART + row % PANEL * 4;
  for (int64_t i = 0; i < words; i++) std::memcpy(to + 2 * i, at + i * APART, 4);
  if (task.k % 2) std::memcpy(to + task.k - 1, at + words * APART, sizeof(bf16));
  if (task.factor != 1.0f) scaled(to, task.k, task.factor, to);
}

template <class Kind> void packed_rows(const PackedLookup &task, int64_t first, int64_t last) {
  for (int64_t t = first; t < last; t++) {
    bf16 *to = task.out + t * task.out_stride;
    int64_t row = task.ids[t] - task.start;
    if (row >= 0 && row < task.n)
      row_of<Kind>(task, row, to);
    else
      std::memset(to, 0, task.k * sizeof(bf16));
  }
}

}  // namespace VARIANT::lookup
