// Each call over all threads.
#include "calls.h"

#include "shares.h"
#include "threads.h"

namespace {

constexpr int64_t SMALL = 1 << 13;  // elements, for which another thread is not worth while

// Rows to take at once.
int64_t grain_of(int64_t rows, int64_t width) { return rows * width <= SMALL ? rows : (SMALL + width - 1) / width; }

}  // namespace

namespace calls {

void Multiply::run() const { threads::run(used->linear[kind], task, (task.n + PANEL - 1) / PANEL); }

void MultiplyGated::run() const {
  threads::run(used->gate_up[kind], task, task.n / PANEL);
  if (!task.rounded.elements) return;
  Quantise after{task.out, task.out_stride, task.rounded, task.n};
  threads::run(used->quantise, after, task.m, grain_of(task.m, task.n));
}

void QuantiseRows::run() const { threads::run(used->quantise, task, m, grain_of(m, task.k)); }

void NormRows::run() const { threads::run(used->add_norm, task, task.rows, grain_of(task.rows, task.n)); }

void LookUp::run() const { threads::run(used->look_up, task, m, grain_of(m, task.n)); }

void LookUpPacked::run() const {
  threads::run(used->look_up_packed[kind], task, task.m, grain_of(task.m, task.k));
}

void TakeHeads::run() const {
  HeadsInput here = task;
  here.layer = &layer;
  int64_t tokens = task.launch->tokens, width = (task.heads + 2 * layer.cache.kv_heads) * layer.cache.dim;
  threads::run(used->heads_input, here, tokens, grain_of(tokens, width));
}

void Attend::run() const {
  Attention here = task;
  here.layer = &layer;
  shares::attend(*used, here);
}

}  // namespace calls
