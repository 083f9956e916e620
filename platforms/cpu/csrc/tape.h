// The calls of a step, recorded once and replayed without the caller, with another number of rows at the same addresses.
#pragma once
#include <cstdint>
#include <cstdlib>

namespace tape {

struct Call {
  Call *next;
  void (*again)(const Call *call, int64_t rows);
};

struct Tape {
  int64_t rows;  // of each call
  Call *first = nullptr, **end = &first;
  int64_t count = 0;
  bool whole = true;  // each call had all rows
};

extern thread_local Tape *recording;  // or null

template <class Task> struct Kept : Call {
  Task task;
};

// Runs a task, or records it without running it if a tape is recording.
template <class Task> void now_or_later(const Task &task) {
  Tape *tape = recording;
  if (!tape) return task.run();
  auto *kept = (Kept<Task> *)std::malloc(sizeof(Kept<Task>));
  if (!kept) std::abort();
  kept->next = nullptr;
  kept->task = task;
  kept->again = [](const Call *call, int64_t rows) {
    Task task = ((const Kept<Task> *)call)->task;
    task.take(rows);
    task.run();
  };
  *tape->end = kept;
  tape->end = &kept->next;
  tape->count++;
  tape->whole &= task.rows() == tape->rows;
}

}  // namespace tape
