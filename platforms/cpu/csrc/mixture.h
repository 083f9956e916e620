// Mixtures of experts. Each expert that a step's tokens have chosen multiplies all of their rows together, so that its weights are read
// once, and threads share the panels of all of these experts, so that none is idle when a single token has few.
#pragma once
#include "kernels.h"

// out [tokens, n of back] = the sums over a token's experts here of weight * back(gate(wide(x))), or of back(gate(wide(weight * x))).
// An expert's MLP without a gate has an activation. A weight's expert begins `apart` bytes behind the one before, and its bias after it.
struct Mixture {
  const void *x;
  int64_t x_stride;
  const float *weights;  // [tokens, top_k]
  const int32_t *ids;    // [tokens, top_k]; others than first to before first + experts are not here
  void *out;
  int64_t out_stride;
  int64_t tokens, top_k, first, experts;
  Product wide, back;  // n, k, coding, unit, x_group, x_part and in_order; packed, scales and bias of the first expert
  int64_t wide_apart, back_apart;
  Gate gate;           // n, slope, limit, offset, activation and number: all but its rows
  Kind wide_kind, back_kind;
  int32_t gated, weighs_inputs;
};

namespace mixture {

void mix(const Kernels &kernels, const Mixture &task);

}  // namespace mixture
