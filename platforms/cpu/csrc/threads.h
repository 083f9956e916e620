// Work dealt out to threads of our own. Whoever calls works too, and waits at the end only for threads that did begin: on
// a machine that is busy otherwise nobody waits for a thread that has no processor.
#pragma once
#include <cstdint>

#include "kernels.h"

namespace threads {

// Calls part(task, first, last) for stretches of at least `grain` items until all are done; whoever is free takes the
// next.
void share(void (*part)(const void *task, int64_t first, int64_t last), const void *task, int64_t items, int64_t grain);

// Threads that work together, the caller's included.
int32_t number();

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
