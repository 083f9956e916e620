// Work dealt out to the threads of an OpenMP runtime that somebody else brought, so that there is one set of threads.
#pragma once
#include <cstdint>

#include "kernels.h"

namespace threads {

void deal(void (*part)(const void *task, int64_t first, int64_t last), const void *task, int64_t items);

void share(void (*part)(const void *task, int64_t first, int64_t last), const void *task, int64_t items);

int32_t number();

// Whoever is free takes the next item: for items of unlike length.
template <class Task> void run_shared(Part<Task> part, const Task &task, int64_t items) {
  struct Whole {
    Part<Task> part;
    const Task *task;
  } whole{part, &task};
  share([](const void *w, int64_t first, int64_t last) {
    auto *whole = (const Whole *)w;
    whole->part(*whole->task, first, last);
  }, &whole, items);
}

// Each thread gets one stretch of the items; small work stays on the caller's.
template <class Task> void run(Part<Task> part, const Task &task, int64_t items, bool small = false) {
  struct Whole {
    Part<Task> part;
    const Task *task;
  } whole{part, &task};
  if (small) return part(task, 0, items);
  deal([](const void *w, int64_t first, int64_t last) {
    auto *whole = (const Whole *)w;
    whole->part(*whole->task, first, last);
  }, &whole, items);
}

}  // namespace threads
