// The gated delta rule (Gated Delta Networks, arXiv:2412.06464), token by token. A token passes over its head's state twice: to read
// what the state holds of its key, and to correct that and read for its query. The second time the state comes from a cache. NARROW
// columns are kept beside each other from token to token, since those of a whole state are so far apart that they evict each other.
#pragma once
#include <cmath>

#include "recurrence.h"

namespace VARIANT::delta_rule {

using namespace simd;

constexpr float EPS = 1e-6f;      // in the length of queries and keys
constexpr int64_t TOGETHER = 4;  // rows of a state that share a load of the sums

// x times `factor`, with length 1.
inline void unit(const float *x, int64_t n, float factor, float *to) {
  Float squares = zero();
  float rest = 0.0f;
  int64_t i = 0;
  for (; i + W <= n; i += W) squares = fma(load(x + i), load(x + i), squares);
  for (; i < n; i++) rest += x[i] * x[i];
  factor /= std::sqrt(sum(squares) + rest + EPS);
  for (i = 0; i + W <= n; i += W) store(to + i, mul(load(x + i), set(factor)));
  for (; i < n; i++) to[i] = x[i] * factor;
}

// sums [n] += k [N] state [N, n], whose rows are `stride` apart.
template <int N> void read(const float *k, const float *state, int64_t stride, int64_t n, float *sums) {
  int64_t j = 0;
  for (; j + W <= n; j += W) {
    Float sum = load(sums + j);
    for (int i = 0; i < N; i++) sum = fma(set(k[i]), load(state + i * stride + j), sum);
    store(sums + j, sum);
  }
  for (; j < n; j++)
    for (int i = 0; i < N; i++) sums[j] += k[i] * state[i * stride + j];
}

// state [N, n] = decay state + k error^T; results [n] += q [N] state.
template <int N>
void correct(const float *q, const float *k, const float *error, float decay, float *state, int64_t stride, int64_t n,
             float *results) {
  int64_t j = 0;
  for (; j + W <= n; j += W) {
    Float wrong = load(error + j), result = load(results + j);
    for (int i = 0; i < N; i++) {
      float *here = state + i * stride + j;
      Float now = fma(set(k[i]), wrong, mul(set(decay), load(here)));
      store(here, now);
      result = fma(set(q[i]), now, result);
    }
    store(results + j, result);
  }
  for (; j < n; j++)
    for (int i = 0; i < N; i++) {
      float &here = state[i * stride + j];
      here = k[i] * error[j] + decay * here;
      results[j] += q[i] * here;
    }
}

// Columns of a head in a row.
struct Head {
  const DeltaRule &task;
  int64_t row, head, column, n;
  float *kept, *state;  // kept: where the state is between launches
  int64_t stride;       // of `state`
  alignas(64) float q[WIDEST], k[WIDEST], error[WIDEST], results[WIDEST], beside[WIDEST * NARROW];

  Head(const DeltaRule &task, int64_t item) : task(task) {
    const Launch &launch = *task.launch;
    int64_t parts = (task.dim + task.columns - 1) / task.columns;
    row = item / (task.heads * parts), head = item / parts % task.heads, column = item % parts * task.columns;
    n = task.dim - column < task.columns ? task.dim - column : task.columns;
    kept = task.state + launch.tables[row * launch.table_stride] * task.slot_stride + head * task.key_dim * task.dim + column;
    bool narrow = n <= NARROW;
    state = narrow ? beside : kept, stride = narrow ? n : task.dim;
    for (int64_t i = 0; i < task.key_dim; i++)
      if (fresh(launch, row))
        std::memset(state + i * stride, 0, n * sizeof(float));
      else if (narrow)
        std::memcpy(state + i * stride, kept + i * task.dim, n * sizeof(float));
  }

  void end() {
    if (state == kept) return;
    for (int64_t i = 0; i < task.key_dim; i++) std::memcpy(kept + i * task.dim, state + i * stride, n * sizeof(float));
  }

  void step(int64_t token, float decay, float beta) {
    int64_t keys = task.key_heads * task.key_dim, dim = task.dim, key_dim = task.key_dim, i = 0;
    float *x = task.mixed + token * (2 * keys + task.heads * dim), *v = x + 2 * keys + head * dim + column;
    int64_t key_head = head / (task.heads / task.key_heads);
    unit(x + key_head * key_dim, key_dim, task.scale, q);
    unit(x + keys + key_head * key_dim, key_dim, 1.0f, k);
    std::memset(error, 0, n * sizeof(float));
    std::memset(results, 0, n * sizeof(float));
    for (; i + TOGETHER <= key_dim; i += TOGETHER) read<TOGETHER>(k + i, state + i * stride, stride, n, error);
    for (; i < key_dim; i++) read<1>(k + i, state + i * stride, stride, n, error);
    for (int64_t j = 0; j < n; j++) error[j] = beta * (v[j] - decay * error[j]);
    for (i = 0; i + TOGETHER <= key_dim; i += TOGETHER)
      correct<TOGETHER>(q + i, k + i, error, decay, state + i * stride, stride, n, results);
    for (; i < key_dim; i++) correct<1>(q + i, k + i, error, decay, state + i * stride, stride, n, results);
    std::memcpy(v, results, n * sizeof(float));
  }
};

template <class Number> void heads(const DeltaRule &task, int64_t first, int64_t last) {
  for (int64_t item = first; item < last; item++) {
    Head head(task, item);
    int64_t start = task.launch->start[head.row], length = task.launch->length[head.row];
    float rate = -std::exp(task.a_log[head.head]), shift = task.dt_bias[head.head];
    for (int64_t token = start; token < start + length; token++) {
      int64_t at = token * task.stride + head.head;
      float decay = std::exp(rate * recurrence::softplus(recurrence::one((const Number *)task.a + at) + shift));
      float beta = task.beta_scale / (1.0f + std::exp(-recurrence::one((const Number *)task.b + at)));
      head.step(token, decay, beta);
    }
    head.end();
  }
}

}  // namespace VARIANT::delta_rule
