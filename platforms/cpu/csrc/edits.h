// Changes logits before tokens are drawn from them, as the ops mask_logits, take_logits, edit_logits and penalise define it.
#pragma once
#include <cstdint>

#include "draws.h"

// In rows[i] of logits [.., vocab], entries whose bit of bits[i] is 0 become -inf. Item: one of the rows.
struct Masking {
  void *logits;
  int64_t stride, vocab;
  const int32_t *rows, *bits;  // bits: [number][ceil(vocab / 32)], the lowest first
  int64_t number;
  int32_t entry;
};

// Copies rows[i] of logits [.., vocab] to out[i]. Item: a part of a row.
struct Taking {
  const void *logits;
  int64_t stride, vocab;
  const int32_t *rows;
  float *out;  // [number, vocab] dense
  int64_t number;
  int32_t entry;
};

// The tokens so far of some rows: the first known[s] of row rows[s] of a table, of which the first prompt[s] are the prompt.
struct History {
  const int32_t *tokens;
  int64_t stride;
  const int32_t *rows, *prompt, *known;
};

// Adds value[e] to the logit of token[e] in row[e], if the row has fewer tokens than until[e] and its answer ends in prefix[e].
struct Editing {
  float *logits;
  int64_t stride;
  History history;
  const int32_t *row, *token;
  const float *value;
  const int32_t *until, *prefix;  // prefix: [number, length], padded with -1 at the front
  int64_t number, length;
};

// Penalties of each row for the tokens that it has. Item: a row.
struct Penalising {
  float *logits;
  int64_t stride, rows, vocab;
  History history;
  const float *presence, *frequency, *repetition;
};

namespace edits {

void mask(const Masking &task);
void take(const Taking &task);
void edit(const Editing &task);
void penalise(const Penalising &task);

}  // namespace edits
