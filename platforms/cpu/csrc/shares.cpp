#include "shares.h"

#include <algorithm>

#include "room.h"
#include "threads.h"

namespace {

constexpr int64_t PIECES = 4;    // shares that each thread should get, at least
constexpr int64_t SHORT = 256;   // keys that are not worth splitting into two shares
constexpr int64_t WORTH = 1 << 16;  // scores times elements of a head that are worth taking from another thread
constexpr int64_t FIXED = 1024;  // keys of each share of a layer in order; a multiple of STEP

int64_t group_of(const Attention &task) { return task.layer->heads / task.layer->cache.kv_heads; }

struct Deal {
  const Attention &task;
  int64_t tile, piece;  // tile: pairs per tile; piece: keys per share
  Share *shares;        // null: only count
  int64_t count = 0, parts = 0;

  void row(int32_t row) {
    const Launch &launch = *task.launch;
    int64_t group = group_of(task), pairs = launch.length[row] * group;
    int64_t tiles = (pairs + tile - 1) / tile, before = launch.kv_len[row] - launch.length[row];
    for (int32_t head = 0; head < task.layer->cache.kv_heads; head++)
      for (int64_t t = 0; t < tiles; t++) {
        int64_t first = pairs * t / tiles, last = pairs * (t + 1) / tiles;
        int64_t to = before + (last - 1) / group + 1;
        if (launch.ahead)  // a token before the last one may see more than it
          for (int64_t token = first / group; token <= (last - 1) / group; token++)
            to = std::max(to, before + token + 1 + launch.ahead[launch.start[row] + token]);
        int64_t from = first_key(*task.layer, before + first / group) / TOKENS * TOKENS;
        keys(Share{row, head, (int32_t)first, (int32_t)(last - first), (int32_t)from, (int32_t)to, -1, 1});
      }
  }

  // A layer in order splits at multiples of `piece`, so that a query's keys are always split at the same ones.
  void keys(Share whole) {
    int64_t begin = task.layer->in_order ? whole.from / piece * piece : whole.from;
    int64_t split = (whole.to - begin + piece - 1) / piece;
    for (int64_t p = 0; p < split; p++) {
      Share share = whole;
      if (p) share.from = (int32_t)(begin + p * piece);
      if (p + 1 < split) share.to = (int32_t)(begin + (p + 1) * piece);
      if (split > 1) share.part = (int32_t)parts++;
      share.parts = p ? 0 : (int32_t)split;
      if (shares) shares[count] = share;
      count++;
    }
  }
};

// The number of keys per share, chosen so that all threads have work.
int64_t piece_of(const Attention &task, int64_t tile) {
  if (task.layer->in_order) return FIXED;
  const Launch &launch = *task.launch;
  int64_t keys = 0, longest = SHORT;
  for (int64_t row = 0; row < launch.rows; row++) {
    int64_t tiles = (launch.length[row] * group_of(task) + tile - 1) / tile;
    keys += tiles * task.layer->cache.kv_heads * launch.kv_len[row];
    if (launch.kv_len[row] > longest) longest = launch.kv_len[row];
  }
  int64_t wanted = keys / (threads::number() * PIECES);
  if (threads::number() == 1 || wanted > longest) return (longest + TOKENS - 1) / TOKENS * TOKENS;
  return ((wanted > SHORT ? wanted : SHORT) + TOKENS - 1) / TOKENS * TOKENS;
}

}  // namespace

namespace shares {

void attend(const Kernels &kernels, Attention task) {
  int64_t tile = kernels.tile < TILE ? kernels.tile : TILE, piece = piece_of(task, tile), rows = task.launch->rows;
  Deal counted{task, tile, piece, nullptr};
  for (int32_t row = 0; row < rows; row++) counted.row(row);
  int64_t of_parts = counted.parts * TILE * (task.layer->cache.dim + 2) * (int64_t)sizeof(float);
  void *work = room_of(of_parts + counted.count * (int64_t)sizeof(Share));
  task.partial = (float *)work;
  auto *all = (Share *)((char *)work + of_parts);
  Deal dealt{task, tile, piece, all};
  for (int32_t row = 0; row < rows; row++) dealt.row(row);
  task.shares = all;
  threads::run(kernels.attention, task, dealt.count, 1);
  if (dealt.parts) threads::run(kernels.join, task, dealt.count);
}

// The same shares whatever the number of threads, so that a row has the same bits everywhere.
void encode(const Kernels &kernels, Encoding task) {
  const Launch &launch = *task.launch;
  int64_t dim = task.layer->cache.dim, most = pairs_of(dim);
  int64_t kv_heads = task.layer->cache.kv_heads, group = task.layer->heads / kv_heads, count = 0, scores = 0;
  for (int64_t row = 0; row < launch.rows; row++) {
    int64_t pairs = launch.length[row] * group;
    count += (pairs + most - 1) / most * kv_heads;
    scores += pairs * launch.length[row] * kv_heads;
  }
  if (!count) return;
  auto *all = (Share *)room_of(count * (int64_t)sizeof(Share)), *next = all;
  for (int32_t row = 0; row < launch.rows; row++) {
    int64_t pairs = launch.length[row] * group, parts = (pairs + most - 1) / most;
    for (int32_t head = 0; head < kv_heads; head++)
      for (int64_t p = 0; p < parts; p++) {
        int64_t first = pairs * p / parts, last = pairs * (p + 1) / parts;
        *next++ = Share{row, head, (int32_t)first, (int32_t)(last - first), 0, launch.length[row], -1, 1};
      }
  }
  task.shares = all;
  int64_t grain = WORTH * count / (scores * dim + 1);
  threads::run(kernels.encode[task.number], task, count, grain < 1 ? 1 : grain);
}

}  // namespace shares
