// Runs each call on all threads.
#include "calls.h"

#include "latents.h"
#include "room.h"
#include "shares.h"
#include "threads.h"

namespace {

using threads::grain_of;

int64_t longest_of(const Launch &launch) {
  int64_t longest = 1;
  for (int64_t row = 0; row < launch.rows; row++)
    if (launch.length[row] > longest) longest = launch.length[row];
  return longest;
}

// How much of a head's state a thread takes at once: all of it, as it is in memory, unless rows are long enough to copy a part of it
// and there would be too few heads for all threads.
int64_t part_of(const Launch &launch, int64_t heads, int64_t dim) {
  return longest_of(launch) == 1 || launch.rows * heads >= 2 * threads::number() ? dim : NARROW;
}

// A product. If the kernel needs converted rows, they are converted first, in chunks that stay in the cache while weights stream
// by.
void multiply_converted(const Multiplying &way, Part<Product> part, const Product &task, int64_t panels) {
  int64_t stride = (task.k + way.unit - 1) / way.unit * way.unit, bytes = stride * way.bytes;
  int64_t tile = way.tile, most = way.most / bytes / tile * tile;
  if (most < tile) most = tile;
  if (most > TOGETHER) most = TOGETHER;
  if (most > task.m) most = task.m;
  void *room = room_of((most + tile - 1) / tile * tile * bytes);
  for (int64_t start = 0; start < task.m; start += most) {
    Product some = task;
    some.m = task.m - start < most ? task.m - start : most;
    const bf16 *x = (const bf16 *)task.x + start * task.x_stride;
    int64_t tiles = (some.m + tile - 1) / tile;
    Conversion conversion{x, task.x_stride, room, stride, some.m, task.k};
    threads::run(way.convert, conversion, tiles, grain_of(tiles, tile * task.k));
    some.x = room, some.x_stride = stride, some.out = (bf16 *)task.out + start * task.out_stride;
    threads::run(part, some, panels);
  }
}

// A product with codes, whose rows come with scales.
void multiply_codes(Part<Product> part, const Product &task, int64_t panels) {
  int64_t units = (task.k + task.unit - 1) / task.unit;
  Product with = task;
  with.x_units = (Unit *)room_of(task.m * units * (int64_t)sizeof(Unit));
  threads::run(used->units, with, task.m, grain_of(task.m, units));
  threads::run(part, with, panels);
}

void multiply(const Multiplying &way, Part<Product> part, Kind kind, const Product &task, int64_t panels) {
  if (kind == of_codes)
    multiply_codes(part, task, panels);
  else if (way.convert)
    multiply_converted(way, part, task, panels);
  else
    threads::run(part, task, panels);
}

}  // namespace

namespace calls {

void Multiply::run() const {
  const Multiplying &way = way_of(*used, kind, task);
  multiply(way, way.linear, kind, task, (task.n + PANEL - 1) / PANEL);
}

void MultiplyGated::run() const {
  const Multiplying &way = way_of(*used, kind, task);
  multiply(way, way.gate_up, kind, task, task.n / PANEL);
  if (!task.rounded.elements) return;
  Quantise after{(const bf16 *)task.out, task.out_stride, task.rounded, task.n};
  threads::run(used->quantise, after, task.m, grain_of(task.m, task.n));
}

void QuantiseRows::run() const { threads::run(used->quantise, task, m, grain_of(m, task.k)); }

void NormRows::run() const { threads::run(used->add_norm, task, task.rows, grain_of(task.rows, task.n)); }

void LayerNormRows::run() const {
  threads::run(used->layer_norm[task.number], task, task.rows, grain_of(task.rows, task.n));
}

void ActivateRows::run() const {
  threads::run(used->activate[task.number], task, task.rows, grain_of(task.rows, task.n));
}

void ScaleRows::run() const {
  threads::run(used->scale[task.number], task, task.rows, grain_of(task.rows, task.n));
}

void GateRows::run() const { threads::run(used->gate[task.number], task, task.rows, grain_of(task.rows, task.n)); }

void SigmoidGateRows::run() const {
  threads::run(used->sigmoid_gate[task.number], task, task.rows, grain_of(task.rows, task.n));
}

void WidenRows::run() const { threads::run(used->widen, task, task.rows, grain_of(task.rows, task.n)); }

void RouteRows::run() const {
  threads::run(used->route[task.number], task, task.rows, grain_of(task.rows, task.experts * (task.top_k + 1)));
}

void MixExperts::run() const { mixture::mix(*used, task); }

// Neighbours with the same adapter share its weights in the cache, so many rows are not divided one by one.
void AddLora::run() const {
  int64_t grain = grain_of(task.rows, task.rank * (task.layers * task.k + task.n) / 16), together = task.rows / 8;
  threads::run(used->lora, task, task.rows, grain > together ? grain : together < 32 ? together : 32);
}

void LookUp::run() const { threads::run(used->look_up[task.number], task, m, grain_of(m, task.n)); }

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

void TakeLatents::run() const {
  LatentInput here = task;
  here.layer = &layer;
  int64_t tokens = task.launch->tokens, width = layer.heads * layer.rope + layer.rank + layer.rope;
  threads::run(used->latent_input[layer.number], here, tokens, grain_of(tokens, width));
}

void AttendLatents::run() const {
  LatentAttention here = task;
  here.layer = &layer;
  latents::attend(*used, here);
}

void Encode::run() const {
  Encoding here = task;
  here.layer = &layer;
  shares::encode(*used, here);
}

void NormGated::run() const {
  threads::run(used->gated_norm[task.number], task, task.tokens * task.groups, grain_of(task.tokens * task.groups, task.size));
}

void Convolve::run() const {
  int64_t items = task.launch->rows * ((task.channels + CHANNELS - 1) / CHANNELS);
  auto part = task.before ? used->gated_convolution[task.number] : used->convolution[task.number];
  threads::run(part, task, items, grain_of(items, CHANNELS * longest_of(*task.launch)));
}

void ApplyDeltaRule::run() const {
  DeltaRule here = task;
  here.columns = part_of(*task.launch, task.heads, task.dim);
  int64_t items = task.launch->rows * task.heads * ((task.dim + here.columns - 1) / here.columns);
  threads::run(used->delta_rule[task.number], here, items,
               grain_of(items, task.key_dim * here.columns * longest_of(*task.launch)));
}

void RenewStates::run() const {
  StateSpace here = task;
  here.rows = part_of(*task.launch, task.heads, task.dim);
  int64_t items = task.launch->rows * task.heads * ((task.dim + here.rows - 1) / here.rows);
  threads::run(used->state_space[task.number], here, items,
               grain_of(items, task.state_dim * here.rows * longest_of(*task.launch)));
}

}  // namespace calls
