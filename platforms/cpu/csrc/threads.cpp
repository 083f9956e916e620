#include "threads.h"

namespace {

using Region = void (*)(void *);
using Parallel = void (*)(Region region, void *data, unsigned threads, unsigned flags);  // GOMP_parallel
using ThreadNumber = int (*)();                                                           // omp_get_thread_num

Parallel parallel = nullptr;
ThreadNumber thread_number = nullptr;
int32_t count = 1;

struct Dealt {
  void (*part)(const void *, int64_t, int64_t);
  const void *task;
  int64_t items;
  int32_t threads;
  int64_t next;  // that nobody has taken
};

void stretch(void *data) {
  auto *dealt = (const Dealt *)data;
  int64_t number = thread_number();
  int64_t first = dealt->items * number / dealt->threads, last = dealt->items * (number + 1) / dealt->threads;
  if (first < last) dealt->part(dealt->task, first, last);
}

void one_by_one(void *data) {
  auto *dealt = (Dealt *)data;
  for (int64_t i; (i = __atomic_fetch_add(&dealt->next, 1, __ATOMIC_RELAXED)) < dealt->items;)
    dealt->part(dealt->task, i, i + 1);
}

}  // namespace

namespace threads {

int32_t number() { return count; }

void share(void (*part)(const void *, int64_t, int64_t), const void *task, int64_t items) {
  int32_t wanted = count < items ? count : (int32_t)items;
  if (wanted <= 1 || !parallel) return part(task, 0, items);
  Dealt dealt{part, task, items, wanted, 0};
  parallel(one_by_one, &dealt, (unsigned)wanted, 0);
}

void deal(void (*part)(const void *, int64_t, int64_t), const void *task, int64_t items) {
  int32_t wanted = count < items ? count : (int32_t)items;
  if (wanted <= 1 || !parallel) return part(task, 0, items);
  Dealt dealt{part, task, items, wanted, 0};
  parallel(stretch, &dealt, (unsigned)wanted, 0);
}

}  // namespace threads

extern "C" __attribute__((visibility("default"))) void tessera_cpu_use_threads(void *gomp_parallel, void *omp_get_thread_num, int32_t number) {
  parallel = (Parallel)gomp_parallel;
  thread_number = (ThreadNumber)omp_get_thread_num;
  count = number;
}
