// What sampling's kernels share. The vocabulary is taken by blocks whose largest entry is known, so that what cannot matter
// is passed over, and by stretches of blocks, which are dealt out to threads.
#pragma once
#include <cstdint>

constexpr int64_t BLOCK = 64;     // entries
constexpr int64_t STRETCH = 128;  // blocks, a multiple of any vector's width

// Noise lies between them.
constexpr float LEAST_NOISE = -2.82f, MOST_NOISE = 16.64f;

enum Entry : int32_t { bf16_entry, float_entry };

// In rows[i] of logits [.., vocab], entries whose bit of bits[i] is 0 become -inf. Item: one of the rows.
struct Masking {
  float *logits;
  int64_t stride, vocab;
  const int32_t *rows, *bits;  // bits: [number][ceil(vocab / 32)], the lowest first
  int64_t number;
};

// Each row divided by its temperature.
struct Logits {
  const void *at;            // [rows, vocab]
  int64_t stride, rows, vocab;
  const float *temperature;  // [rows], or null; not above 0: the row stays as it is
  int64_t blocks, width, stretches;  // of a row; width: blocks, filled up
  float *largest;  // [rows][width]: of each block, none where an entry is none
  float *peaks;    // [rows][stretches]: of each stretch
  float *peak;     // [rows]
};

// The first entries of a row in their order, which is by size, and among equal ones by number: those larger than
// `value`, and those equal to it up to number `last`.
struct Prefix {
  int64_t row;
  float value;
  int64_t last;
};

// A row that is to be drawn. floor: its score is larger. key, other: of its noise.
struct Ticket {
  float floor;
  uint32_t key, other;
  float top_p;
  double total;  // mass of what top_p is a part of
};

struct Found {
  float score;
  int32_t entry;  // -1: none
  float value;
};

// The best of scaled logits and noise among a prefix. Item: a stretch of a ticket.
struct Drawing {
  const Logits *logits;
  const Prefix *among;
  const Ticket *tickets;
  Found *found;  // [tickets][stretches]
};

// The sum of exp(entry - peak) over a prefix. Item: a stretch of a prefix.
struct Weighing {
  const Logits *logits;
  const Prefix *prefixes;
  double *mass;  // [prefixes][stretches]
};

// Prefixes of so many entries; where they are none, or all there are, a prefix stays as it is. Item: a prefix.
struct Cutting {
  const Logits *logits;
  Prefix *prefixes;
  const int64_t *keep;
  int32_t *blocks;  // [prefixes][width], to work in
};

// What is said of the log probabilities of a row whose peak is finite: the rank of its token, and the entries of its
// prefix, in no order. Item: a row.
struct Ranking {
  const Logits *logits;
  const Prefix *prefixes;
  const float *log_sum;  // of exp(entry - peak)
  const int32_t *tokens;
  int64_t number;  // entries of a prefix
  int32_t *ids;    // [rows][1 + number], from the second on
  int32_t *ranks;
};

// What is asked for, through the C interface: a token for each row. Without temperature all take their largest; without
// top_k nothing is filtered.
struct Sampling {
  const void *logits;
  int64_t stride, rows, vocab;
  const float *temperature;
  const int32_t *top_k;
  const float *top_p, *min_p;
  const int64_t *seed, *position;
  int32_t *tokens;
  int32_t entry;
};

// The log probabilities of tokens and of the `number` most likely entries, as op logprobs defines them.
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
