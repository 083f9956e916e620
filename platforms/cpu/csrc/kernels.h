// The interface of each instruction set. A kernel does a part of its task, items `first` to before `last`; each task says what an
// item is. bf16 is stored in 16-bit integers; strides are in elements.
#pragma once
#include <cstdint>

#include "draws.h"

using bf16 = uint16_t;

constexpr int64_t PANEL = 32;      // outputs that are packed together
constexpr int64_t TOGETHER = 384;  // the most rows divided into tiles at once; they stay in the cache while panels stream by

enum class Activation : int32_t { silu, gelu_tanh, gelu, relu2, relu };

// Where quantized rows of int8 are written, each group of a row with its own scale: a row is about scale * its elements. The scale
// of a group with a NaN or infinite element is NaN. Elements from the end of a row to `stride` are set to 0.
struct Int8Rows {
  int8_t *elements;  // null: not wanted
  int64_t stride;
  float *scale;   // [rows, ceil(k / group)]
  int32_t *sums;  // [rows, ceil(k / part)]: of the elements of each part
  int64_t group;  // elements that share a scale: a multiple of 16
  int64_t part;   // elements that share a sum: divides a group
};

constexpr int64_t SPAN = 32;  // elements of k whose codes are packed together: as many words per output as a code has bits

// How the elements of a quantized weight are stored: as codes, unsigned integers of 8, 4, 5 or 6 bits; levels: as numbers of 4 bits of
// codes in a table. A value is scale * (code - offset) - minimum, where most weights have no minimum.
enum class Codes : int32_t { bytes, fours, fives, sixes, levels };
constexpr int64_t words_of(Codes codes) {  // of an output, in a span
  constexpr int64_t OF[] = {8, 4, 5, 6, 4};
  return OF[(int)codes];
}

// How the scales and minimums are stored, as records of a panel, in which a number stands for each of its outputs.
//   by_row      one record: float
//   bf16        one per group: bf16
//   zeros       one per group: bf16, then bytes, the codes that stand for zero. The minimum is their product.
//   half        one per group: float16
//   half_zeros  as zeros, with float16
//   minimums    one per group: float16, then another, by which values are higher
//   k_pairs     one per 256 elements: float16 of scales and of minimums; bytes, eight scales and eight minimums, to multiply them with
//   k_signed    one per 256 elements: float16; bytes, 16 scales with 128 added
//   exponents   one per group: bytes, of powers of two with the bias 128
//   fractions   one per group: bytes, E4M3 whose sign means nothing, which stand for half of it
enum class Scaling : int32_t { by_row, bf16, zeros, half, half_zeros, minimums, k_pairs, k_signed, exponents, fractions };

struct Coding {
  Codes codes;
  Scaling scaling;
  const void *scales;  // [panels][records]
  int64_t group;       // elements of k that share a scale: a multiple of 8 that divides k; k if all do
  int32_t offset;
  uint8_t table[16];   // of levels
};

// A unit of a row, all of whose elements share a scale, and those of the weight as well. start: what its sums of whole numbers
// begin at, since codes are unsigned.
struct Unit {
  int32_t start;
  float scale;
  float less;  // of the units of a group up to this one, the sum of all elements, negated: a minimum is multiplied with the last
};

// out [m, n] = x [m, k] W^T + bias; or activation(x G^T) * (x U^T), where W is [G; U] and n, the number of rows of each, is a
// multiple of PANEL. Item: a panel of out.
//
// A weight is packed in panels of 32 outputs and padded beyond n and k.
//   bf16    [panels][ceil(k / 2)][32][2], with zeros
//   floats  [panels][k][32], with zeros
//   codes   [panels][ceil(k / 32)][words][32][4], where the words of an output are:
//     bytes   8, each of four codes
//     fours, levels  4, each of eight codes: byte i holds element i of eight in its low half, i + 4 in its high half
//     fives   the same, then 1 of their highest bits: byte i holds elements i, i + 4, i + 8 and so on, from the lowest bit on
//     sixes   the same, with 2 of two bits each
struct Product {
  const void *x;         // bf16 or float [m, k]; or int8 rows, with zeros from k to a multiple of SPAN
  int64_t x_stride;      // elements
  const float *x_scale;  // of a quantized row's groups, as Int8Rows has them
  const int32_t *x_sum;
  int64_t x_group, x_part;
  Unit *x_units;         // [m, ceil(k / unit)]: room for what the kernels make of these
  int64_t unit;          // elements of k that share a scale of the row and one of the weight: a multiple of x_part and of 8
  const void *packed;
  Coding coding;         // of codes
  const void *bias;      // or null; like out, float where the weights are, otherwise bf16
  void *out;
  int64_t out_stride;
  int64_t m, n, k;
  Int8Rows rounded;      // for gate_up: where to write the rows of out quantized, once they are complete
  Activation activation;
  int32_t in_order;      // the products of a row are added up in one order, whatever the number of rows
};

// Converts rows to the form that an instruction set multiplies, if it needs another one. Item: a tile of rows.
struct Conversion {
  const void *x;
  int64_t x_stride;  // elements
  void *to;
  int64_t stride;    // elements per row in `to`
  int64_t rows, k;
};

// Quantizes rows of bf16 to int8. Item: a row.
struct Quantise {
  const bf16 *x;
  int64_t x_stride;
  Int8Rows to;
  int64_t k;
};

// sum = residual + multiplier * x, out = sum / sqrt(mean(sum^2) + eps) * (weight + offset), optionally quantized to int8. The sum
// is x if residual is null. Item: a row.
struct AddNorm {
  const bf16 *x;
  int64_t x_stride;
  const bf16 *residual;  // or null
  int64_t residual_stride;
  const bf16 *weight;
  bf16 *sum;  // [rows, n] dense; null without a residual
  bf16 *out;  // [rows, n] dense; null: quantized to int8
  Int8Rows rounded;
  int64_t rows, n;
  float eps, offset, multiplier;
};

// sum = residual + x, rounded, out = (sum - mean(sum)) / sqrt(variance(sum) + eps) * weight + bias; all of bf16, or of float. The sum is
// x if residual is null. Item: a row.
struct LayerNorm {
  const void *x;
  int64_t x_stride;
  const void *residual;  // or null
  int64_t residual_stride;
  const void *weight, *bias;
  void *sum;       // [rows, n] dense; null without a residual
  void *out;       // [rows, n] dense; null: only the sum is wanted
  int64_t rows, n;
  float eps;
  int32_t number;  // enum Entry: of all of these
};

// out = activation(x), both of bf16, or of float. Item: a row.
struct Activate {
  const void *x;
  int64_t x_stride;
  void *out;  // may be x
  int64_t out_stride;
  int64_t rows, n;
  Activation activation;
  int32_t number;  // enum Entry: of x and out
};

// out = factor x, both of bf16, or of float. Item: a row.
struct Scale {
  const void *x;
  int64_t x_stride;
  void *out;  // may be x
  int64_t out_stride;
  int64_t rows, n;
  float factor;
  int32_t number;  // enum Entry: of x and out
};

// out = activation(slope * left) / slope * (right + offset), where left and right are the halves of x [rows, 2 n], the one at most
// `limit`, the other also at least -limit; all of bf16, or of float. Item: a row.
struct Gate {
  const void *x;
  int64_t x_stride;
  void *out;
  int64_t out_stride;
  int64_t rows, n;
  float slope, limit, offset;  // 1, infinity and 0: an ordinary gate
  Activation activation;
  int32_t number;  // enum Entry: of x and out
};

// out [rows, n] = x * sigmoid(gate [rows, gates]), each gate for n / gates elements, all of bf16, or of float. Item: a row.
struct SigmoidGate {
  const void *x;
  int64_t x_stride;
  const void *gate;
  int64_t gate_stride;
  void *out;
  int64_t out_stride;
  int64_t rows, n, gates;
  int32_t number;  // enum Entry: of all of these
};

// out = x as floats. Item: a row.
struct Widening {
  const bf16 *x;
  int64_t x_stride;
  float *out;  // [rows, n] dense
  int64_t rows, n;
};

constexpr int64_t MAX_EXPERTS = 1024;  // that a router chooses from

// Chooses the experts of a token, the best first: those with the best scores, to which a bias is added, in the best groups of
// consecutive experts, if there are groups. Of equal ones, those with lower numbers are better. Item: a row.
struct Routing {
  const void *logits;  // [rows, experts] of bf16, or of float
  int64_t stride;
  const float *bias;  // [experts], or null
  float *weights;     // [rows, top_k]
  int32_t *ids;       // [rows, top_k]
  int64_t rows, experts, top_k;
  int64_t groups, top_groups;
  int64_t group_top_k;   // a group is as good as the sum of so many of its best
  float scale;           // of the weights
  int32_t renormalised;  // weights are divided by their sum
  int32_t sigmoid;       // a score is the sigmoid of a logit; otherwise logits are scored by a softmax
  int32_t number;        // enum Entry: of the logits
};

// What experts are given: row i of `to` is that of x for the token of choice choices[i], which is the token's number times top_k
// plus the choice's number. Item: a row.
struct Gathering {
  const void *x;
  int64_t x_stride;
  const float *weights;  // [tokens, top_k], by which rows are multiplied; or null
  const int32_t *choices;
  void *to;  // dense
  int64_t n, top_k;
};

// The weighted sums of what experts returned. A token's sum is added up in the order in which `places` has its rows, of which those
// from `start` on are here. Item: a token.
struct Joining {
  const void *rows;        // [.., n]: from row `start` to before row `end`
  const int32_t *places;   // [tokens, top_k]: of the token's rows, ascending; then -1
  const int32_t *choices;  // as in Gathering, of all rows
  const float *weights;    // [tokens, top_k]; null: rows are added as they are
  float *sums;             // [tokens, n]: of the rows before `start`; null if these are all
  void *out;
  int64_t out_stride;
  int64_t n, top_k;
  int64_t start, end, all;  // all: the number of rows
};

constexpr int64_t MAX_RANK = 1024;  // of an adapter

// y [rows, n] += scale * (x A^T) B, rounded once, with the adapter in each row's slot; a row with a negative slot stays as it is. A
// product joins layers: `rank` rows of A belong to each, and layer i's outputs end before ends[i]. Item: a row.
struct Lora {
  bf16 *y;
  int64_t y_stride;
  const bf16 *x;
  int64_t x_stride;
  const bf16 *a;  // [slots, layers * rank, k]
  const bf16 *b;  // [slots, rank, n]
  const float *scales;
  const int32_t *slots;  // of each row
  const int64_t *ends;
  int64_t layers, rows, n, k, rank;
};

// Looks up rows of a table [.., n] of bf16, or of float, times scale. Item: a row.
struct Lookup {
  const int32_t *ids;
  const int32_t *boundaries;  // or null; otherwise row 1 is looked up where an id reaches its boundary, and row 0 elsewhere
  const void *table;
  int64_t stride;  // of the table
  void *out;       // [rows, n] dense
  int64_t n;
  float scale;
  int32_t number;  // enum Entry: of table and out
};

// Looks up rows of a packed weight [n, k] (see Product), times `factor`: row id - start, or zeros if it does not exist. Item: a
// row.
struct PackedLookup {
  const int32_t *ids;
  const void *packed;
  Coding coding;  // as in Product
  void *out;      // float if the weight is, otherwise bf16
  int64_t out_stride;
  int64_t m, n, k;
  int64_t start;
  float factor;
};

// Where one layer's keys and values are. A block has keys [kv_heads][block_size / 16][dim / 2][16][2] and values
// [kv_heads][block_size / 2][dim][2], so that a dot product of pairs takes 16 tokens, or two tokens of 16 elements, at once. With
// scales, [kv_heads][block_size] per block, the numbers are int8, and a token's head is about its scale times them.
struct Cache {
  void *keys, *values;               // bf16 or int8
  float *key_scales, *value_scales;  // or null
  int64_t key_stride, value_stride, key_scale_stride, value_scale_stride;  // from block to block
  int64_t block_size;                // a multiple of 16
  int64_t kv_heads, dim;             // dim a multiple of 16
};

constexpr int64_t WIDEST = 256;  // the largest head dimension
constexpr int64_t TOKENS = 16;  // keys are packed in groups of this many

// The constants of an attention layer.
struct Layer {
  Cache cache;
  int64_t heads;          // query heads
  const float *cos_sin;   // [positions, turned]: cosines, then sines; null: no rotary embedding
  int64_t turned;         // elements of a head that are rotated
  const bf16 *q_weight, *k_weight;  // of the norms of heads, or null
  int64_t window;         // 0: no window
  float eps, offset;      // of the norms
  float scale, soft_cap;  // of the scores; 0: no cap
  int32_t neighbours;     // rotates elements 2i and 2i + 1; otherwise i and i + turned / 2
  int32_t in_order;       // a query's keys are processed in one order, whatever else is in the launch
  int64_t chunk;          // a query sees keys of its own chunk of so many tokens; 0: no chunks
  const float *slopes;    // [heads]: for each token that a query comes after its key, its score is less by this; or null
  const bf16 *sinks;      // [heads]: a score of a key without a value; or null
  const float *relative_bias;  // [heads, reach]: added to scores, the last entry where a query is its key's token, the first where
                               // it comes reach - 1 tokens or more after it; or null
  int64_t reach;
};

// The first key that the query in a position sees.
inline int64_t first_key(const Layer &layer, int64_t position) {
  if (layer.chunk) return position / layer.chunk * layer.chunk;
  return layer.window && position >= layer.window ? position + 1 - layer.window : 0;
}

// The constants of a launch. start, length: a row's tokens in the launch; kv_len: the number of its keys, including those of the
// launch, of which the last is that of its last token. slots: where each token's keys and values are stored. ahead: how many
// tokens after each one it sees; or null.
struct Launch {
  const int32_t *tables, *start, *length, *kv_len, *positions, *slots, *ahead;
  int64_t table_stride, rows, tokens;
};

// Splits x [tokens, (heads + 2 kv_heads) dim] into q [tokens, heads, dim] and keys and values for the cache: RMS norm per head,
// if there are weights for it, then rotary embedding. Item: a token.
struct HeadsInput {
  const Layer *layer;
  const Launch *launch;
  const bf16 *x;
  int64_t x_stride, heads;  // heads: of x; 0 if there are only keys and values
  bf16 *q;
};

// Attention of a launch's rows over their own blocks. q, out: [tokens, heads, dim]. Item: a share.
struct Attention {
  const Layer *layer;
  const Launch *launch;
  const bf16 *q;
  bf16 *out;
  const struct Share *shares;
  float *partial;  // [parts][TILE][dim + 2]: sums, then the largest score and the sum of exponentials
};

constexpr int64_t TILE = 12;  // the most (token, head) pairs in a share
constexpr int64_t STEP = 128;  // the most keys that a share processes at once

// A thread's unit of work: pairs (token, head of the group) of a row, from `first` on, with one key head, from key `from` (a
// multiple of 16) to before `to`. part: where its partial result goes; < 0 if the result is complete. parts: in the first of
// several shares that form a tile, their number; the others follow it.
struct Share {
  int32_t row, kv_head, first, count, from, to, part, parts;
};

// The most (token, head) pairs in a share of encoder attention: fewer of large heads, so that they stay in the cache.
constexpr int64_t PAIRS = 128, OF_PAIRS = 1 << 13;
constexpr int64_t widened_to_panels(int64_t dim) { return (dim + PANEL - 1) / PANEL * PANEL; }
constexpr int64_t pairs_of(int64_t dim) {
  int64_t fit = OF_PAIRS / widened_to_panels(dim);
  return fit < PAIRS ? fit : PAIRS;
}

// Attention within rows: each token sees those of its own row, within the window. x [tokens, (heads + 2 kv_heads) dim]; out [tokens,
// heads, dim], dense; both of bf16, or of float. Item: a share, whose keys are all of its row that its pairs see.
struct Encoding {
  const Layer *layer;    // kv_heads and dim of its cache alone; the weights of its norms are of the numbers of x
  const Launch *launch;  // its start, length and positions alone
  const void *x;
  int64_t x_stride;
  void *out;
  const float *bias;     // [heads, 2 reach - 1], added to scores: entry key - query + reach - 1; or null
  int64_t reach;         // larger distances count as reach - 1
  int32_t number;        // enum Entry: of x and out
  const Share *shares;
};

// ---- mixers that keep a state
//
// A layer's state is in slots of floats, `slot_stride` apart; a row's slot is the first entry of its table. A row that is at its
// beginning, whose keys are all in the launch, begins with zeros, whatever its slot holds. Rows are computed token by token.

inline bool fresh(const Launch &launch, int64_t row) { return launch.kv_len[row] == launch.length[row]; }

constexpr int64_t TAPS = 8;       // the most tokens that a convolution sees
constexpr int64_t CHANNELS = 64;  // of an item of a convolution
constexpr int64_t NARROW = 32;    // columns, or rows, of a head's state that are computed together where heads are few

// A causal depthwise convolution over a row's last inputs. Inputs are x, times `multipliers`, or times the elements of `before`; the
// result is that of the convolution and `bias`: its SiLU as floats, or, times the elements of `after`, numbers as x has. Item: CHANNELS
// of a row.
struct Convolution {
  const Launch *launch;
  const void *x;              // [tokens, channels]
  const void *before, *after;  // [tokens, channels], of a gated convolution; otherwise null
  int64_t x_stride;           // of all three
  float *state;               // [slots][channels][kernel - 1]: the last inputs, the latest at the end
  int64_t slot_stride;
  const float *weight;        // [channels, kernel]
  const float *bias;          // [channels], or null
  const float *multipliers;   // [channels], or null
  void *out;                  // [tokens, channels] dense
  int64_t channels, kernel;
  int32_t number;             // enum Entry: of x
};

// The delta rule: for each head, with its key head's query q and key k, both of length 1, the state S becomes
// exp(g) S + k (beta (v - exp(g) k^T S))^T, and the result is scale q^T S; g = -exp(a_log) softplus(a + dt_bias) and beta =
// beta_scale sigmoid(b). Item: `columns` of a head's value, in a row.
struct DeltaRule {
  const Launch *launch;
  float *mixed;               // [tokens, 2 key_heads key_dim + heads dim] dense: queries, keys and values, which the results replace
  const void *b, *a;          // [tokens, heads]
  int64_t stride;             // of both
  float *state;               // [slots][heads][key_dim][dim]
  int64_t slot_stride;
  const float *a_log, *dt_bias;  // [heads]
  int64_t heads, key_heads, key_dim, dim, columns;
  float scale, beta_scale;
  int32_t number;             // enum Entry: of b and a
};

// The recurrence of Mamba 2: for each head, with its group's B and C, the state S becomes exp(dt A) S + dt x B^T, and the result is
// S C + D x; A = -exp(a_log) and dt = softplus(dt + dt_bias), within limits. Item: `rows` of a head's state, in a row.
struct StateSpace {
  const Launch *launch;
  float *mixed;               // [tokens, heads dim + 2 groups state_dim] dense: x, which the results replace, B and C
  const void *dt;             // [tokens, heads]
  int64_t dt_stride;
  const float *multipliers;   // [heads] of dt, or null
  float *state;               // [slots][heads][dim][state_dim]
  int64_t slot_stride;
  const float *a_log, *d, *dt_bias;  // [heads]
  int64_t heads, groups, dim, state_dim, rows;
  float dt_min, dt_max;
  int32_t number;             // enum Entry: of dt
};

// The RMS norm of each group of a token's elements, times `weight`, and SiLU of a gate, which comes before the norm or behind it.
// Item: a group of a token.
struct GatedNorm {
  const float *x;             // [tokens, groups size]
  int64_t x_stride;
  const void *gate;           // [tokens, groups size]
  int64_t gate_stride;
  const float *multipliers;   // [groups size] of gates, or null
  const float *weight;        // of the groups, `weight_stride` apart; null: no norm
  int64_t weight_stride;      // 0: all groups have the same weights
  void *out;                  // [tokens, groups size] dense
  int64_t tokens, groups, size;
  float eps;
  int32_t gate_first;
  int32_t number;             // enum Entry: of gate and out
};

// The constants of a layer of latent attention (MLA, arXiv:2405.04434). Queries, latents, `up` and results are all of bf16, or of float.
struct LatentLayer {
  void *latents;         // of the cache: a block has [block_size][rank + rope], normed and turned
  int64_t block_stride;  // elements from block to block
  int64_t block_size;
  int64_t rank, rope;    // elements that keys and values are computed from, and then those that are part of each key
  int64_t heads;
  int64_t nope, value;   // elements of a head's query before the `rope` ones, and of its value
  const void *up;        // [heads][nope + value][rank]: what makes a key, then what makes a value
  const void *norm;      // [rank], of latents before they are kept; null: they come normed
  const float *cos_sin;  // as in Layer
  int64_t turned;        // elements of the rope part that are rotated
  float eps, offset;     // of the norm
  float scale;           // of the scores
  int32_t neighbours;    // as in Layer
  int32_t number;        // enum Entry
};

// The largest sizes: of a latent, of a head's query, and of its value.
constexpr int64_t WIDEST_LATENT = 640, WIDEST_HEAD = 256;

// Turns the last part of each head of q [tokens, heads (nope + rope)] in place, and norms and turns latents [tokens, rank + rope] and
// stores them in the cache. Item: a token.
struct LatentInput {
  const LatentLayer *layer;
  const Launch *launch;
  void *q;             // or null
  int64_t q_stride;    // of tokens
  const void *latent;
  int64_t latent_stride;
};

// A token whose queries are computed: its number in the launch, its row, and the keys that it sees, of the row or of its selection.
struct LatentToken {
  int32_t token, row, keys;
};

// A thread's unit of work: pairs (token, head) of one row, from key `from` to before `to`. part, parts: as in Share.
struct LatentShare {
  int32_t first, count, from, to, part, parts;
};

constexpr int64_t LATENT_PAIRS = 64;  // the most in a share: their queries and sums stay in the L2 cache
constexpr int64_t LATENT_KEYS = 48;   // that are widened to floats at a time, for all pairs of a share
constexpr int64_t LATENT_PIECES = 4;  // units of work that a head's part of `up` is divided into

// Attention over latents as they are, as if they were the keys, and their first `rank` elements the values, of one head that all
// share: queries are multiplied with the first part of `up` before, and sums with the second after.
struct LatentAttention {
  const LatentLayer *layer;
  const Launch *launch;
  const void *q;              // as in LatentInput, turned
  int64_t q_stride;
  void *out;                  // [tokens, heads, value]
  const int32_t *selection;   // [tokens, limit]: the keys that a token sees, -1 for none; null: all up to its own
  int64_t limit;
  const LatentToken *tokens;  // some of the launch, row by row; a pair's number counts these
  int64_t count;
  const LatentShare *shares;
  float *queries;             // [count, heads, latent_wide()]: what keys are multiplied with, with zeros behind
  float *mixed;               // [count, heads, latent_deep()]: sums of weighted latents
  float *partial;             // [parts][LATENT_PAIRS][latent_deep() + 2]: as in Attention
};
inline int64_t latent_wide(const LatentLayer &layer) { return widened_to_panels(layer.rank + layer.rope); }
inline int64_t latent_deep(const LatentLayer &layer) { return widened_to_panels(layer.rank); }

// Attention of one row with the keys and values of some heads, which are computed from its latents: for many queries that costs less.
struct LatentHeads {
  const LatentLayer *layer;
  const Launch *launch;
  const void *q;             // as in LatentAttention
  int64_t q_stride;
  void *out;
  int64_t row, first, count; // heads: so many from the first on
  float *keys;               // [count][padded keys of the row][nope + rope in whole panels]
  float *values;             // [count][padded keys of the row][value in whole panels]
};
inline int64_t padded_keys(int64_t keys) { return (keys + LATENT_KEYS - 1) / LATENT_KEYS * LATENT_KEYS; }

template <class Task> using Part = void (*)(const Task &task, int64_t first, int64_t last);

enum Kind : int32_t { of_bf16, of_codes, of_floats };

// A way to multiply rows with weights of one kind.
struct Multiplying {
  Part<Product> linear, gate_up;
  Part<Conversion> convert;  // of x, before; null: its rows are multiplied as they are
  int64_t bytes, unit;       // of a converted element; elements that a converted row is padded to a multiple of
  int64_t tile;              // rows in an item of the conversion
  int64_t most;              // bytes of rows that are converted at a time
};

// Few rows may need another way, which adds their products up in another order; a product in order is always `of_many`.
struct Products {
  Multiplying of_many, of_few;
  int64_t few;  // so many rows at most are few
};

struct Kernels {
  const char *name;
  Products products[3];  // by Kind
  Part<Product> units;   // sets x_units. Item: a row
  Part<Quantise> quantise;
  Part<AddNorm> add_norm;
  Part<LayerNorm> layer_norm[2];  // by Entry
  Part<Activate> activate[2];     // by Entry
  Part<Scale> scale[2];           // by Entry
  Part<Gate> gate[2];             // by Entry
  Part<SigmoidGate> sigmoid_gate[2];  // by Entry
  Part<Widening> widen;
  Part<Routing> route[2];     // by Entry
  Part<Gathering> gather[2];  // by Entry
  Part<Joining> join_experts[2];  // by Entry
  Part<Lora> lora;
  Part<Lookup> look_up[2];               // by Entry
  Part<PackedLookup> look_up_packed[3];  // by Kind
  Part<HeadsInput> heads_input;
  Part<Attention> attention, join;
  Part<Encoding> encode[2];  // by Entry
  Part<Convolution> convolution[2], gated_convolution[2];  // by Entry, like those below
  Part<DeltaRule> delta_rule[2];
  Part<StateSpace> state_space[2];
  Part<GatedNorm> gated_norm[2];
  Part<LatentInput> latent_input[2];          // by Entry
  Part<LatentAttention> latent_absorb[2];     // by Entry: from q to `queries`. Item: a piece of a head
  Part<LatentAttention> latent_attention[2];  // by Entry: from `queries` to `mixed`. Item: a share
  Part<LatentAttention> latent_join;          // of the parts of shares. Item: a share; the first of several has their number
  Part<LatentAttention> latent_values[2];     // by Entry: from `mixed` to out. Item: a piece of a head
  Part<LatentHeads> latent_expand[2];         // by Entry: from the cache to keys and values. Item: LATENT_KEYS keys of a head
  Part<LatentHeads> latent_heads[2];          // by Entry: from q, keys and values to out. Item: LATENT_PAIRS tokens of a head
  Part<Logits> survey[2];  // by Entry, like those below
  Part<Drawing> draw[2];
  Part<Weighing> weigh[2];
  Part<Cutting> cut[2];
  Part<Ranking> rank[2];
  int64_t tile;  // rows of a product, or pairs of a share, whose sums fit in registers
};

// How so many rows as a product has are multiplied.
inline const Multiplying &way_of(const Kernels &kernels, Kind kind, const Product &task) {
  const Products &products = kernels.products[kind];
  return task.m <= products.few && !task.in_order ? products.of_few : products.of_many;
}

// Those that the library has are in the table of library.cpp.
extern const Kernels portable_kernels;
extern const Kernels avx2_kernels, avx512_kernels, avx512_vnni_kernels, avx512_bf16_kernels, amx_kernels;
extern const Kernels neon_kernels, neon_dotprod_kernels, neon_bf16_kernels, sve_256_kernels, sve_256_bf16_kernels, sve_512_kernels;
extern const Kernels vsx_kernels, mma_kernels;
