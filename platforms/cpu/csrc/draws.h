// What the sampling kernels share. The vocabulary is divided into blocks with a known largest entry, so that irrelevant ones can
// be skipped, and into stretches of blocks, which are distributed to threads.
#pragma once
#include <cstdint>

constexpr int64_t BLOCK = 64;     // entries
constexpr int64_t STRETCH = 128;  // blocks; a multiple of any vector width

// The bounds of the noise.
constexpr float LEAST_NOISE = -2.82f, MOST_NOISE = 16.64f;

enum Entry : int32_t { bf16_entry, float_entry };

// Logits, divided by each row's temperature.
struct Logits {
  const void *at;            // [rows, vocab]
  int64_t stride, rows, vocab;
  const float *temperature;  // [rows], or null; a row is unchanged if its temperature is not above 0
  int64_t blocks, width, stretches;  // per row; width: number of blocks, rounded up
  float *largest;  // [rows][width]: of each block; NaN if an entry is NaN
  float *peaks;    // [rows][stretches]: of each stretch
  float *peak;     // [rows]
};

// The first entries of a row, ordered by size and then by number: those larger than `value`, and those equal to it up to number
// `last`.
struct Prefix {
  int64_t row;
  float value;
  int64_t last;
};

// A row to sample. floor: a score that the result is sure to exceed. key, other: of its noise.
struct Ticket {
  float floor;
  uint32_t key, other;
  float top_p;
  double total;  // the mass of which top_p is a fraction
};

struct Found {
  float score;
  int32_t entry;  // -1: none
  float value;
};

// Finds the entry with the best sum of scaled logit and noise in a prefix. Item: a stretch of a ticket.
struct Drawing {
  const Logits *logits;
  const Prefix *among;
  const Ticket *tickets;
  Found *found;  // [tickets][stretches]
};

// Sums exp(entry - peak) over a prefix. Item: a stretch of a prefix.
struct Weighing {
  const Logits *logits;
  const Prefix *prefixes;
  double *mass;  // [prefixes][stretches]
};

// Limits prefixes to `keep` entries; a prefix is unchanged if keep is 0 or the whole vocabulary. Item: a prefix.
struct Cutting {
  const Logits *logits;
  Prefix *prefixes;
  const int64_t *keep;
  int32_t *blocks;  // [prefixes][width], scratch memory
};

// The rank of a row's token, and the entries of its prefix in no particular order, for a row with a finite peak. Item: a row.
struct Ranking {
  const Logits *logits;
  const Prefix *prefixes;
  const float *log_sum;  // log of the sum of exp(entry - peak)
  const int32_t *tokens;
  int64_t number;  // entries of a prefix
  int32_t *ids;    // [rows][1 + number], written from the second on
  int32_t *ranks;
};

// The C interface of sampling: one token for each row. All rows take their largest entry if temperature is null; nothing is
// filtered if top_k is null.
struct Sampling {
  const void *logits;
  int64_t stride, rows, vocab;
  const float *temperature;
  const int32_t *top_k;
  const float *top_p, *min_p;
  const int32_t (*seed)[2];  // low and high bits
  const int32_t *position;
  int32_t *tokens;
  int32_t entry;
};

// The C interface of log probabilities: those of tokens, and of the `number` most likely entries, as the op logprobs defines
// them.
struct Logprobs {
  const void *logits;
  int64_t stride, rows, vocab;
  const int32_t *tokens;
  int64_t number;
  int32_t *ids;     // [rows, 1 + number]
  float *logprobs;  // [rows, 1 + number]
  int32_t *ranks;   // [rows]
  int32_t entry;
};
