// Weights in the order that their products read them, as kernels.h says for each kind. Item: a panel.
#pragma once
#include "kernels.h"

namespace packing {

// elements: bf16 [n, k], or int8 [n, k] of whole numbers; stride: of its rows.
struct Weight {
  const void *elements;
  int64_t stride;
  void *packed;
  int64_t n, k;
};

// `each` puts element i of a row into the panel at the row's place; every element is visited once, zeros beyond n and k.
template <class Number, class Each> void pack(const Weight &task, int64_t first, int64_t last, int64_t k, Each each) {
  for (int64_t panel = first; panel < last; panel++)
    for (int64_t j = 0; j < PANEL; j++) {
      int64_t row = panel * PANEL + j;
      const Number *from = (const Number *)task.elements + row * task.stride;
      for (int64_t i = 0; i < k; i++) each(panel, j, i, row < task.n && i < task.k ? from[i] : (Number)0);
    }
}

inline void pack_bf16(const Weight &task, int64_t first, int64_t last) {
  int64_t k = (task.k + 1) / 2 * 2;
  pack<bf16>(task, first, last, k, [&](int64_t panel, int64_t j, int64_t i, bf16 x) {
    ((bf16 *)task.packed)[panel * k * PANEL + i / 2 * 2 * PANEL + 2 * j + i % 2] = x;
  });
}

inline void pack_int8(const Weight &task, int64_t first, int64_t last) {
  int64_t k = (task.k + 3) / 4 * 4;
  pack<int8_t>(task, first, last, k, [&](int64_t panel, int64_t j, int64_t i, int8_t x) {
    ((uint8_t *)task.packed)[panel * k * PANEL + i / 4 * 4 * PANEL + 4 * j + i % 4] = (uint8_t)(x + 128);
  });
}

inline void pack_int4(const Weight &task, int64_t first, int64_t last) {
  int64_t k = (task.k + 7) / 8 * 8;
  pack<int8_t>(task, first, last, k, [&](int64_t panel, int64_t j, int64_t i, int8_t x) {
    uint8_t *byte = (uint8_t *)task.packed + panel * k * PANEL / 2 + i / 8 * 4 * PANEL + 4 * j + i % 4;
    int half = i / 4 % 2;
    *byte = (uint8_t)(half ? (*byte | (x + 8) << 4) : (x + 8));
  });
}

constexpr Part<Weight> BY_KIND[] = {pack_bf16, pack_int8, pack_int4};

}  // namespace packing
