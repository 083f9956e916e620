// The recurrence of Mamba 2 (structured state space duality, arXiv:2405.21060), token by token. A token passes over its head's state
// once: each row of it is renewed and read.
#pragma once
#include <cmath>

#include "recurrence.h"

namespace VARIANT::state_space {

using namespace simd;

constexpr int64_t TOGETHER = 4;  // rows of a state that share loads of B and C

// state [N, n] = decay state + x b^T; results [N] = state c. x: times the step.
template <int N>
void renew(const float *x, const float *b, const float *c, float decay, float *state, int64_t n, float *results) {
  Float sums[N];
  float rests[N] = {};
  for (int i = 0; i < N; i++) sums[i] = zero();
  int64_t j = 0;
  for (; j + W <= n; j += W)
    for (int i = 0; i < N; i++) {
      float *here = state + i * n + j;
      Float now = fma(set(x[i]), load(b + j), mul(set(decay), load(here)));
      store(here, now);
      sums[i] = fma(now, load(c + j), sums[i]);
    }
  for (; j < n; j++)
    for (int i = 0; i < N; i++) {
      float &here = state[i * n + j];
      here = x[i] * b[j] + decay * here;
      rests[i] += here * c[j];
    }
  for (int i = 0; i < N; i++) results[i] = sum(sums[i]) + rests[i];
}

// Rows of a head's state, in a row.
struct Head {
  const StateSpace &task;
  int64_t row, head, first, count;
  float *state;

  Head(const StateSpace &task, int64_t item) : task(task) {
    const Launch &launch = *task.launch;
    int64_t parts = (task.dim + task.rows - 1) / task.rows;
    row = item / (task.heads * parts), head = item / parts % task.heads, first = item % parts * task.rows;
    count = task.dim - first < task.rows ? task.dim - first : task.rows;
    state = task.state + launch.tables[row * launch.table_stride] * task.slot_stride;
    state += (head * task.dim + first) * task.state_dim;
    if (fresh(launch, row)) std::memset(state, 0, count * task.state_dim * sizeof(float));
  }

  template <int N> void some(float *x, const float *b, const float *c, int64_t i, float step, float decay) {
    float scaled[N], results[N];
    for (int m = 0; m < N; m++) scaled[m] = step * x[i + m];
    renew<N>(scaled, b, c, decay, state + i * task.state_dim, task.state_dim, results);
    for (int m = 0; m < N; m++) x[i + m] = results[m] + task.d[head] * x[i + m];
  }

  void step(int64_t token, float step, float decay) {
    int64_t inner = task.heads * task.dim, wide = task.groups * task.state_dim;
    float *whole = task.mixed + token * (inner + 2 * wide), *x = whole + head * task.dim + first;
    const float *b = whole + inner + head / (task.heads / task.groups) * task.state_dim, *c = b + wide;
    int64_t i = 0;
    for (; i + TOGETHER <= count; i += TOGETHER) some<TOGETHER>(x, b, c, i, step, decay);
    for (; i < count; i++) some<1>(x, b, c, i, step, decay);
  }
};

template <class Number> void heads(const StateSpace &task, int64_t first, int64_t last) {
  for (int64_t item = first; item < last; item++) {
    Head head(task, item);
    int64_t start = task.launch->start[head.row], length = task.launch->length[head.row];
    float rate = -std::exp(task.a_log[head.head]), factor = task.multipliers ? task.multipliers[head.head] : 1.0f;
    for (int64_t token = start; token < start + length; token++) {
      float dt = factor * recurrence::one((const Number *)task.dt + token * task.dt_stride + head.head);
      float step = recurrence::softplus(dt + task.dt_bias[head.head]);
      step = step < task.dt_min ? task.dt_min : step > task.dt_max ? task.dt_max : step;
      head.step(token, step, std::exp(rate * step));
    }
  }
}

}  // namespace VARIANT::state_space
