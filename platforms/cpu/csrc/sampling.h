// Samples tokens from logits: the work on whole rows, and the parts that are distributed to threads.
#pragma once
#include "kernels.h"
#include "room.h"

namespace sampling {

void sample(const Kernels &kernels, const Sampling &task);
void logprobs(const Kernels &kernels, const Logprobs &task);

// Allocates arrays one after the other in given memory; without memory, only counts their size.
struct Room {
  uintptr_t at;
  int64_t used = 0;

  explicit Room(void *work) : at((uintptr_t)work) {}

  template <class T> T *take(int64_t number) {
    used = (used + 63) / 64 * 64;
    auto *array = (T *)(at + (uintptr_t)used);
    used += number * (int64_t)sizeof(T);
    return array;
  }
};

// Describes a task's logits, with memory for the facts about their blocks.
template <class Task> Logits laid(const Task &task, const float *temperature, Room &room) {
  int64_t blocks = (task.vocab + BLOCK - 1) / BLOCK, stretches = (blocks + STRETCH - 1) / STRETCH;
  int64_t width = (blocks + 15) / 16 * 16;
  return Logits{task.logits, task.stride, task.rows, task.vocab, temperature, blocks, width, stretches,
                room.take<float>(task.rows * width), room.take<float>(task.rows * stretches),
                room.take<float>(task.rows)};
}

// The least number of stretches to take at once, for `rows` rows.
inline int64_t grain_of(const Logits &logits, int64_t rows) {
  return rows * logits.vocab <= 1 << 13 ? rows * logits.stretches : 1;
}

// Computes the largest entries of blocks, stretches and rows.
void survey(Part<Logits> part, const Logits &logits);

// mass: [number][stretches], scratch memory; sums: the result for each prefix.
void weigh(Part<Weighing> part, const Logits &logits, const Prefix *prefixes, int64_t number, double *mass, double *sums);

}  // namespace sampling
