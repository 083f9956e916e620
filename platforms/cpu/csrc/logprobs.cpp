#include <algorithm>

#include "sampling.h"

#define VARIANT common  // does not depend on the instruction set
#include "entries.h"
#include "threads.h"

namespace {

// The state of all rows.
struct Looks {
  Logits logits;
  Prefix *prefixes;
  int64_t *keep;
  double *mass, *sums;
  float *log_sum;
  int32_t *blocks;

  Looks(const Logprobs &task, sampling::Room &memory) : logits(sampling::laid(task, nullptr, memory)) {
    prefixes = memory.take<Prefix>(task.rows);
    keep = memory.take<int64_t>(task.rows);
    mass = memory.take<double>(task.rows * logits.stretches), sums = memory.take<double>(task.rows);
    log_sum = memory.take<float>(task.rows);
    blocks = memory.take<int32_t>(task.rows * logits.width);
  }
};

struct Listing {
  const Logprobs &task;
  const Logits &logits;
  const float *log_sum;
};

// Sorts the entries found, and computes their log probabilities. For a row whose largest entry is infinite or NaN they are NaN.
// Item: a row.
template <class T> void list(const Listing &listing, int64_t first, int64_t last) {
  const Logprobs &task = listing.task;
  for (int64_t row = first; row < last; row++) {
    int32_t *ids = task.ids + row * (1 + task.number);
    float *logprobs = task.logprobs + row * (1 + task.number), peak = listing.logits.peak[row];
    auto entry = [&](int32_t id) { return common::entries::entry<T>(listing.logits, row, id); };
    ids[0] = task.tokens[row];
    if (std::isfinite(peak)) {
      std::sort(ids + 1, ids + 1 + task.number, [&](int32_t one, int32_t other) {
        float mine = entry(one), theirs = entry(other);
        return mine > theirs || (mine == theirs && one < other);
      });
      for (int64_t i = 0; i <= task.number; i++) logprobs[i] = entry(ids[i]) - peak - listing.log_sum[row];
      continue;
    }
    for (int64_t i = 1; i <= task.number; i++) ids[i] = (int32_t)i - 1;
    for (int64_t i = 0; i <= task.number; i++) logprobs[i] = NAN;
    task.ranks[row] = 1;
  }
}

}  // namespace

namespace sampling {

void logprobs(const Kernels &kernels, const Logprobs &task) {
  Room counted(nullptr);
  Looks(task, counted);
  Room memory(room_of(counted.used));
  Looks looks(task, memory);
  auto &[logits, prefixes, keep, mass, sums, log_sum, blocks] = looks;
  int64_t rows = task.rows;
  survey(kernels.survey[task.entry], logits);
  for (int64_t row = 0; row < rows; row++) prefixes[row] = Prefix{row, -INFINITY, task.vocab - 1};
  weigh(kernels.weigh[task.entry], logits, prefixes, rows, mass, sums);
  for (int64_t row = 0; row < rows; row++) {
    log_sum[row] = (float)std::log(sums[row]);
    keep[row] = std::isfinite(logits.peak[row]) ? task.number : 0;
  }
  threads::run(kernels.cut[task.entry], Cutting{&logits, prefixes, keep, blocks}, rows, 1);
  Ranking ranking{&logits, prefixes, log_sum, task.tokens, task.number, task.ids, task.ranks};
  threads::run(kernels.rank[task.entry], ranking, rows, 1);
  threads::run<Listing>(task.entry == float_entry ? list<float> : list<bf16>, Listing{task, logits, log_sum}, rows, 1);
}

}  // namespace sampling
