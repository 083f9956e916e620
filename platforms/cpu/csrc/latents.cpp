#include "latents.h"

#include "room.h"
#include "threads.h"

namespace {

constexpr int64_t PIECES = 4;         // shares that each thread should get, at least
constexpr int64_t SHORT = 96;         // keys that are not worth splitting into two shares
constexpr int64_t MOST_TOKENS = 512;  // at once
constexpr int64_t ROOM = 1 << 25;     // bytes for what is computed at once, unless a single token or head needs more

int64_t rounded_up(int64_t x, int64_t step) { return (x + step - 1) / step * step; }

// The shares of some tokens.
struct Deal {
  const LatentAttention &task;
  int64_t piece;        // keys per share
  LatentShare *shares;  // null: only count
  int64_t count = 0, parts = 0;

  // tokens first to last are of one row, or, with a selection, one alone.
  void of_row(int64_t first, int64_t last) {
    int64_t heads = task.layer->heads, pairs = (last - first) * heads, tiles = (pairs + LATENT_PAIRS - 1) / LATENT_PAIRS;
    for (int64_t t = 0; t < tiles; t++) {
      int64_t from = first * heads + pairs * t / tiles, to = first * heads + pairs * (t + 1) / tiles;
      keys(from, to - from, task.tokens[(to - 1) / heads].keys);
    }
  }
  void keys(int64_t first, int64_t pairs, int64_t keys) {
    int64_t split = keys > piece ? (keys + piece - 1) / piece : 1;
    for (int64_t p = 0; p < split; p++, count++) {
      int64_t to = p + 1 < split ? (p + 1) * piece : keys, part = split > 1 ? parts++ : -1;
      if (!shares) continue;
      shares[count] = {(int32_t)first, (int32_t)pairs, (int32_t)(p * piece), (int32_t)to, (int32_t)part, (int32_t)(p ? 0 : split)};
    }
  }
  void all() {
    for (int64_t first = 0, last; first < task.count; first = last) {
      last = first + 1;
      while (!task.selection && last < task.count && task.tokens[last].row == task.tokens[first].row) last++;
      of_row(first, last);
    }
  }
};

// The number of keys per share, chosen so that all threads have work.
int64_t piece_of(const LatentAttention &task) {
  int64_t keys = 0, longest = SHORT, tiles = (task.layer->heads + LATENT_PAIRS - 1) / LATENT_PAIRS;
  for (int64_t i = 0; i < task.count; i++) {
    keys += tiles * task.tokens[i].keys;
    if (task.tokens[i].keys > longest) longest = task.tokens[i].keys;
  }
  if (threads::number() == 1) return longest;
  int64_t wanted = keys / (threads::number() * PIECES);
  return rounded_up(wanted > SHORT ? wanted : SHORT, LATENT_KEYS);
}

void attend_absorbed(const Kernels &kernels, LatentAttention task) {
  const LatentLayer &layer = *task.layer;
  int64_t pairs = task.count * layer.heads, piece = piece_of(task), deep = latent_deep(layer);
  Deal counted{task, piece, nullptr};
  counted.all();
  int64_t queries = pairs * latent_wide(layer), mixed = pairs * deep, partial = counted.parts * LATENT_PAIRS * (deep + 2);
  task.queries = (float *)room_of((queries + mixed + partial) * (int64_t)sizeof(float) +
                                counted.count * (int64_t)sizeof(LatentShare));
  task.mixed = task.queries + queries;
  task.partial = task.mixed + mixed;
  auto *shares = (LatentShare *)(task.partial + partial);
  Deal dealt{task, piece, shares};
  dealt.all();
  task.shares = shares;
  int64_t pieces = layer.heads * LATENT_PIECES;
  threads::run(kernels.latent_absorb[layer.number], task, pieces);
  threads::run(kernels.latent_attention[layer.number], task, dealt.count);
  if (dealt.parts) threads::run(kernels.latent_join, task, dealt.count);
  threads::run(kernels.latent_values[layer.number], task, pieces);
}

void attend_expanded(const Kernels &kernels, const LatentAttention &task, int64_t row) {
  const LatentLayer &layer = *task.layer;
  int64_t keys = padded_keys(task.launch->kv_len[row]), tokens = task.launch->length[row];
  int64_t of_keys = keys * widened_to_panels(layer.nope + layer.rope), of_values = keys * widened_to_panels(layer.value);
  int64_t together = ROOM / ((of_keys + of_values) * (int64_t)sizeof(float));
  if (together < 1) together = 1;
  if (together > layer.heads) together = layer.heads;
  auto *room = (float *)room_of(together * (of_keys + of_values) * (int64_t)sizeof(float));
  LatentHeads heads{&layer, task.launch, task.q, task.q_stride, task.out, row, 0, 0, room, room + together * of_keys};
  for (; heads.first < layer.heads; heads.first += heads.count) {
    heads.count = layer.heads - heads.first < together ? layer.heads - heads.first : together;
    threads::run(kernels.latent_expand[layer.number], heads, heads.count * (keys / LATENT_KEYS));
    threads::run(kernels.latent_heads[layer.number], heads, heads.count * ((tokens + LATENT_PAIRS - 1) / LATENT_PAIRS));
  }
}

// Whether it takes fewer products to compute the keys and values of a row than to multiply queries with its latents.
bool better_expanded(const LatentLayer &layer, int64_t queries, int64_t keys) {
  int64_t pairs = queries * (keys - queries) + queries * (queries + 1) / 2, up = (layer.nope + layer.value) * layer.rank;
  int64_t absorbed = pairs * (2 * layer.rank + layer.rope) + queries * up;
  return keys * up + pairs * (layer.nope + layer.rope + layer.value) < absorbed;
}

}  // namespace

namespace latents {

void attend(const Kernels &kernels, LatentAttention task) {
  const LatentLayer &layer = *task.layer;
  const Launch &launch = *task.launch;
  int64_t of_token = layer.heads * (latent_wide(layer) + latent_deep(layer)) * (int64_t)sizeof(float);
  int64_t most = ROOM / of_token < MOST_TOKENS ? ROOM / of_token : MOST_TOKENS;
  LatentToken tokens[MOST_TOKENS];
  task.tokens = tokens;
  task.count = 0;
  auto finish = [&] {
    if (task.count) attend_absorbed(kernels, task);
    task.count = 0;
  };
  for (int32_t row = 0; row < launch.rows; row++) {
    int32_t length = launch.length[row], keys = launch.kv_len[row];
    if (!task.selection && better_expanded(layer, length, keys)) {
      attend_expanded(kernels, task, row);
      continue;
    }
    for (int32_t i = 0; i < length; i++) {
      int32_t seen = task.selection ? (int32_t)task.limit : keys - length + i + 1;
      tokens[task.count++] = {launch.start[row] + i, row, seen};
      if (task.count >= most) finish();
    }
  }
  finish();
}

}  // namespace latents
