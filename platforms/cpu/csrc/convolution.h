// A causal depthwise convolution, some channels of a row at a time. States and weights are stored by channel; while tokens pass, they
// are held by tap, so that vectors take several channels.
#pragma once
#include "numbers.h"

namespace VARIANT::convolution {

using namespace simd;

static_assert(CHANNELS % W == 0);

// Some channels of a row under way. inputs: those of the last tokens, in turn: that of the row's token i is at (i + kernel - 1) % kernel.
struct Window {
  const Convolution &task;
  int64_t row, first, count;
  float *state;
  alignas(64) float weight[TAPS][CHANNELS], inputs[TAPS][CHANNELS], bias[CHANNELS], multipliers[CHANNELS];

  Window(const Convolution &task, int64_t item)
      : task(task), row(item / blocks(task)), first(item % blocks(task) * CHANNELS),
        count(task.channels - first < CHANNELS ? task.channels - first : CHANNELS) {
    const Launch &launch = *task.launch;
    state = task.state + launch.tables[row * launch.table_stride] * task.slot_stride + first * (task.kernel - 1);
    std::memset(inputs, 0, sizeof inputs);
    for (int64_t tap = 0; tap < task.kernel; tap++)
      for (int64_t c = 0; c < count; c++) weight[tap][c] = task.weight[(first + c) * task.kernel + tap];
    if (!fresh(launch, row))
      for (int64_t tap = 0; tap < task.kernel - 1; tap++)
        for (int64_t c = 0; c < count; c++) inputs[tap][c] = state[c * (task.kernel - 1) + tap];
    for (int64_t c = 0; c < count; c++) bias[c] = task.bias ? task.bias[first + c] : 0.0f;
    for (int64_t c = 0; c < count; c++) multipliers[c] = task.multipliers ? task.multipliers[first + c] : 1.0f;
  }

  static int64_t blocks(const Convolution &task) { return (task.channels + CHANNELS - 1) / CHANNELS; }

  // take(token, channel, count) -> W inputs, of which `count` exist; put(token, channel, count, results).
  template <class Take, class Put> void run(Take &&take, Put &&put) {
    int64_t start = task.launch->start[row], length = task.launch->length[row], kernel = task.kernel;
    for (int64_t i = 0; i < length; i++) {
      float *seen[TAPS];
      for (int64_t tap = 0; tap < kernel; tap++) seen[tap] = inputs[(i + tap) % kernel];
      for (int64_t c = 0; c < count; c += W) {
        int64_t here = count - c < W ? count - c : W;
        Float latest = mul(take(start + i, first + c, here), load(multipliers + c)), sum = zero();
        for (int64_t tap = 0; tap < kernel - 1; tap++) sum = fma(load(seen[tap] + c), load(weight[tap] + c), sum);
        store(seen[kernel - 1] + c, latest);
        put(start + i, first + c, here, add(fma(latest, load(weight[kernel - 1] + c), sum), load(bias + c)));
      }
    }
    for (int64_t tap = 0; tap < kernel - 1; tap++)
      for (int64_t c = 0; c < count; c++) state[c * (kernel - 1) + tap] = inputs[(length + tap) % kernel][c];
  }
};

template <class Number> Float take(const void *from, int64_t at, int64_t count) {
  const Number *p = (const Number *)from + at;
  return count < W ? numbers::take_some(p, count) : numbers::take(p);
}
template <class Number> void put(void *to, int64_t at, int64_t count, Float x) {
  Number *p = (Number *)to + at;
  count < W ? numbers::put_some(p, x, count) : numbers::put(p, x);
}

template <class Number> void rows(const Convolution &task, int64_t first, int64_t last) {
  for (int64_t item = first; item < last; item++)
    Window(task, item).run(
        [&](int64_t token, int64_t c, int64_t count) { return take<Number>(task.x, token * task.x_stride + c, count); },
        [&](int64_t token, int64_t c, int64_t count, Float x) { put<float>(task.out, token * task.channels + c, count, silu(x)); });
}

template <class Number> void gated_rows(const Convolution &task, int64_t first, int64_t last) {
  for (int64_t item = first; item < last; item++)
    Window(task, item).run(
        [&](int64_t token, int64_t c, int64_t count) {
          int64_t at = token * task.x_stride + c;
          return mul(take<Number>(task.before, at, count), take<Number>(task.x, at, count));
        },
        [&](int64_t token, int64_t c, int64_t count, Float x) {
          Float after = take<Number>(task.after, token * task.x_stride + c, count);
          put<Number>(task.out, token * task.channels + c, count, mul(after, x));
        });
}

}  // namespace VARIANT::convolution
