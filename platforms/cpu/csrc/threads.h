// Distributes work to our own threads. The caller works too, and at the end only waits for threads that have begun, so on a busy
// machine it does not wait for a thread without a processor.
#pragma once
#include <cstdint>

#include "kernels.h"

namespace threads {

// Calls part(task, first, last) on ranges of at least `grain` items until all are done; idle threads take the next range.
void share(void (*part)(const void *task, int64_t first, int64_t last), const void *task, int64_t items, int64_t grain);

// The number of threads, including the caller's.
int32_t number();

constexpr int64_t SMALL = 1 << 13;  // elements, too few to be worth another thread

// The number of rows to take at once.
inline int64_t grain_of(int64_t rows, int64_t width) { return rows * width <= SMALL ? rows : (SMALL + width - 1) / width; }

template <class Task> void run(Part<Task> part, const Task &task, int64_t items, int64_t grain = 1) {
  struct Whole {
    Part<Task> part;
    const Task *task;
  } whole{part, &task};
  share([](const void *w, int64_t first, int64_t last) {
    auto *whole = (const Whole *)w;
    whole->part(*whole->task, first, last);
  }, &whole, items, grain);
}

}  // namespace threads
