// What each instruction set brings. A kernel does a part of its task, from item `first` to before `last`; what an item is
// stands beside it. Numbers of 16 bits are bfloat16; strides are in elements.
#pragma once
#include <cstdint>

#include "draws.h"

using bf16 = uint16_t;

constexpr int64_t PANEL = 32;      // outputs that are packed together
constexpr int64_t TOGETHER = 384;  // rows at most that are dealt out to tiles, and stay in a cache while panels go by

enum class Activation : int32_t { silu, gelu_tanh };

// Where rows of int8 go, each with a scale of its own: a row is about scale * its elements. A row with an element that is
// none, or infinite, has a scale that is none. sums: of each group of a row. Elements from its end to `stride` become 0.
struct Int8Rows {
  int8_t *elements;  // null: nowhere
  int64_t stride;
  float *scale;
  int32_t *sums;  // [rows, groups]
  int64_t group;
};

// out [m, n] = x [m, k] W^T + bias, or activation(x G^T) * (x U^T) where W is [G; U] and n their rows, a multiple of
// PANEL. Item: a panel of out.
//
// A weight is packed by panels of 32 outputs; what lies beyond n or k is 0.
//   bf16   [panels][ceil(k / 2)][32][2]
//   int8   [panels][ceil(k / 4)][32][4], 128 added so that no byte has a sign
//   int4   [panels][ceil(k / 8)][32][4], 8 added; the low half of byte i is element i of eight, the high half i + 4
struct Product {
  const void *x;         // bf16 [m, k], or rows that were quantised
  int64_t x_stride;      // elements
  const float *x_scale;  // of each quantised row
  const int32_t *x_sum;  // of each group of a quantised row: the sum of its elements
  const void *packed;
  const void *scale;     // int8: float [n]; int4: bf16 [panels][groups][32]
  const bf16 *bias;      // or null
  bf16 *out;
  int64_t out_stride;
  int64_t m, n, k;
  int64_t group;         // elements of k that share a scale and a sum, a multiple of 8; k is a multiple of it
  Int8Rows rounded;      // of gate_up: where the rows of out go once more, when all are there
  Activation activation;
};

// Rows as an instruction set multiplies them, where that is not as they are. Item: a tile of at most `tile` rows.
struct Widening {
  const void *x;
  int64_t x_stride;  // elements
  void *to;
  int64_t stride;    // elements that a row has there
  int64_t rows, k;
};

// Rows of bf16 to int8. Item: a row.
struct Quantise {
  const bf16 *x;
  int64_t x_stride;
  Int8Rows to;
  int64_t k;
};

// sum = residual + multiplier * x, out = sum / sqrt(mean(sum^2) + eps) * (weight + offset), or the same as rows of int8.
// Where residual is null the sum is x. Item: a row.
struct AddNorm {
  const bf16 *x;
  int64_t x_stride;
  const bf16 *residual;  // or null
  int64_t residual_stride;
  const bf16 *weight;
  bf16 *sum;  // [rows, n] dense; null without a residual
  bf16 *out;  // [rows, n] dense; null: not wanted, or the rows go to int8
  Int8Rows rounded;
  int64_t rows, n;
  float eps, offset, multiplier;
};

// Rows of a table [.., n], times scale. Item: a row.
struct Lookup {
  const int32_t *ids;
  const bf16 *table;
  int64_t stride;  // of the table
  bf16 *out;       // [rows, n] dense
  int64_t n;
  float scale;
};

// Rows of a packed weight [n, k] as Product has it, times `factor`: row id - start, or zeros where there is none. Item: a
// row.
struct PackedLookup {
  const int32_t *ids;
  const void *packed;
  const void *scale;  // as Product's
  bf16 *out;
  int64_t out_stride;
  int64_t m, n, k;
  int64_t group;      // of int4
  int64_t start;
  float factor;
};

// Where one layer's keys and values are. Keys of a block: [kv_heads][block_size / 16][dim / 2][16][2], values:
// [kv_heads][block_size / 2][dim][2], so that a dot of pairs takes 16 tokens, or two tokens of 16 elements, at once.
// Where there are scales, [kv_heads][block_size] of a block, the numbers are int8, and a token's head is about its scale times
// them.
struct Cache {
  void *keys, *values;               // bf16 or int8
  float *key_scales, *value_scales;  // or null
  int64_t key_stride, value_stride, key_scale_stride, value_scale_stride;  // from block to block
  int64_t block_size;                // a multiple of 16
  int64_t kv_heads, dim;             // dim a multiple of 16
};

constexpr int64_t WIDEST = 256;  // elements of a head, at most
constexpr int64_t TOKENS = 16;  // that keys are packed by

// What is constant of a layer of attention.
struct Layer {
  Cache cache;
  int64_t heads;          // of queries
  const float *cos_sin;   // [positions, turned]: cosines, then sines; null: no rotary
  int64_t turned;         // elements of a head that are turned
  const bf16 *q_weight, *k_weight;  // of the norms of heads, or null
  int64_t window;         // 0: none
  float eps, offset;      // of the norms
  float scale, soft_cap;  // of the scores; 0: no cap
  int32_t neighbours;     // turns elements 2i and 2i + 1; otherwise i and i + turned / 2
};

// What is constant of a launch. start, length: a row's tokens in the launch; kv_len: its keys, those of the launch
// included, the last of which is its last token's. slots: where each token's keys and values go.
struct Launch {
  const int32_t *tables, *start, *length, *kv_len, *positions, *slots;
  int64_t table_stride, rows, tokens;
};

// Turns x [tokens, (heads + 2 kv_heads) dim] into q [tokens, heads, dim] and what the cache keeps: RMS norm by head where
// there are weights for it, then rotary embedding. Item: a token.
struct HeadsInput {
  const Layer *layer;
  const Launch *launch;
  const bf16 *x;
  int64_t x_stride, heads;  // heads: of x; 0 where only keys and values are given
  bf16 *q;
};

// Rows of a launch attend to their own blocks. q, out: [tokens, heads, dim]. Item: a share.
struct Attention {
  const Layer *layer;
  const Launch *launch;
  const bf16 *q;
  bf16 *out;
  const struct Share *shares;
  float *partial;  // [parts][TILE][dim + 2]: sums, then the largest score and the sum of exponents
};

constexpr int64_t TILE = 12;  // most (token, head) pairs of a share

// What one thread does in one go: pairs (token, head of the group) of a row from `first` on, with one head of keys from
// key `from` (a multiple of 16) to before `to`. part: where its partial result goes; < 0: it is the whole result. parts: of
// the first of several that belong together how many there are; the others follow it.
struct Share {
  int32_t row, kv_head, first, count, from, to, part, parts;
};

template <class Task> using Part = void (*)(const Task &task, int64_t first, int64_t last);

enum Kind : int32_t { of_bf16, of_int8, of_int4 };

struct Kernels {
  const char *name;
  Part<Widening> widen[3];              // by Kind, or null: rows of x are multiplied as they are
  Part<Product> linear[3], gate_up[3];  // by Kind; x: widened, where it is
  Part<Quantise> quantise;
  Part<AddNorm> add_norm;
  Part<Lookup> look_up;
  Part<PackedLookup> look_up_packed[3];  // by Kind
  Part<HeadsInput> heads_input;
  Part<Attention> attention;
  Part<Logits> survey[2];  // by Entry, as those after it
  Part<Drawing> draw[2];
  Part<Weighing> weigh[2];
  Part<Cutting> cut[2];
  Part<Ranking> rank[2];
  int64_t tile;  // rows of a product, or pairs of a share, whose sums stay in registers
};

extern const Kernels portable_kernels;
#if defined(__x86_64__)
extern const Kernels avx2_kernels, avx512_kernels, avx512_vnni_kernels, avx512_bf16_kernels, amx_kernels;
#endif
