// Routes tokens to experts. DeepSeek-V2, arXiv:2405.04434 (groups); DeepSeek-V3, arXiv:2412.19437 (sigmoid, bias, groups scored by
// several of their best).
#pragma once
#include <cmath>

#include "numbers.h"

namespace VARIANT::routing {

using namespace simd;

constexpr float LEAST = 1e-20f;  // added to a sum of weights: too small to change one that is not 0

// The scores of a row's experts, and W - 1 more numbers that mean nothing.
template <class T> void score(const Routing &task, const T *logits, float *scores) {
  int64_t experts = task.experts;
  for (int64_t i = 0; i < experts; i += W)
    store(scores + i, experts - i < W ? numbers::take_some(logits + i, experts - i) : numbers::take(logits + i));
  if (task.sigmoid) {
    for (int64_t i = 0; i < experts; i += W)
      store(scores + i, div(set(1.0f), add(set(1.0f), exp(sub(zero(), load(scores + i))))));
    return;
  }
  float most = scores[0], sum = 0.0f;
  for (int64_t i = 1; i < experts; i++) most = scores[i] > most ? scores[i] : most;
  for (int64_t i = 0; i < experts; i += W) store(scores + i, exp(sub(load(scores + i), set(most))));
  for (int64_t i = 0; i < experts; i++) sum += scores[i];
  for (int64_t i = 0; i < experts; i += W) store(scores + i, div(load(scores + i), set(sum)));
}

// Calls take(number, place) for the places of the best of some values, the best first.
template <class Take> void best_of(const float *values, int64_t count, int64_t wanted, bool *taken, Take &&take) {
  for (int64_t i = 0; i < count; i++) taken[i] = false;
  for (int64_t number = 0; number < wanted; number++) {
    int64_t best = -1;
    for (int64_t i = 0; i < count; i++)
      if (!taken[i] && (best < 0 || values[i] > values[best])) best = i;
    taken[best] = true;
    take(number, best);
  }
}

// Sets the scores of all groups' experts but those of the best groups to minus infinity.
inline void close_groups(const Routing &task, float *rated, bool *taken) {
  int64_t size = task.experts / task.groups;
  float of_group[MAX_EXPERTS];
  for (int64_t g = 0; g < task.groups; g++) {
    of_group[g] = 0.0f;
    best_of(rated + g * size, size, task.group_top_k, taken, [&](int64_t, int64_t i) { of_group[g] += rated[g * size + i]; });
  }
  best_of(of_group, task.groups, task.top_groups, taken, [](int64_t, int64_t) {});
  for (int64_t i = 0; i < task.experts; i++)
    if (!taken[i / size]) rated[i] = -INFINITY;
}

template <class T> inline void route(const Routing &task, int64_t first, int64_t last) {
  alignas(64) float scores[MAX_EXPERTS], rated[MAX_EXPERTS];
  bool taken[MAX_EXPERTS];
  for (int64_t row = first; row < last; row++) {
    score(task, (const T *)task.logits + row * task.stride, scores);
    for (int64_t i = 0; i < task.experts; i++) rated[i] = scores[i] + (task.bias ? task.bias[i] : 0.0f);
    if (task.groups > 1) close_groups(task, rated, taken);
    float *weights = task.weights + row * task.top_k, sum = 0.0f;
    best_of(rated, task.experts, task.top_k, taken, [&](int64_t number, int64_t expert) {
      task.ids[row * task.top_k + number] = (int32_t)expert;
      sum += weights[number] = scores[expert];
    });
    for (int64_t i = 0; i < task.top_k; i++) weights[i] = (task.renormalised ? weights[i] / (sum + LEAST) : weights[i]) * task.scale;
  }
}

}  // namespace VARIANT::routing
