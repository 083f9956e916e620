#include "threads.h"

#include <pthread.h>
#include <sched.h>
#include <time.h>
#include <unistd.h>

#include "exported.h"

#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#endif
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace {

constexpr int32_t MOST = 256;
constexpr int64_t AWAKE_NS = 200'000;   // how long a thread spins for the next work before it sleeps

// The current work. state: the upper half counts up with each work, and is odd while it is open; the lower half is the number of
// pool threads working on it. A thread enters with one compare-and-swap of both halves, so it cannot enter closed work.
struct Pool {
  alignas(64) uint64_t state = 0;
  alignas(64) int64_t next = 0;
  void (*part)(const void *, int64_t, int64_t) = nullptr;
  const void *task = nullptr;
  int64_t items = 0, grain = 1;
  alignas(64) uint32_t posted = 0;  // changes with each work; threads sleep on it
  uint32_t sleeping = 0;
  int32_t wanted = 1, started = 1;
  pid_t owner = 0;
} pool;

pthread_mutex_t one_caller = PTHREAD_MUTEX_INITIALIZER;

int64_t now_ns() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * 1'000'000'000LL + time.tv_nsec;
}

inline void breathe() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

#if defined(__linux__)
void sleep_while(uint32_t value) { syscall(SYS_futex, &pool.posted, FUTEX_WAIT_PRIVATE, value, nullptr, nullptr, 0); }
void wake_all() { syscall(SYS_futex, &pool.posted, FUTEX_WAKE_PRIVATE, MOST, nullptr, nullptr, 0); }
#else
pthread_mutex_t asleep = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t woken = PTHREAD_COND_INITIALIZER;
void sleep_while(uint32_t value) {
  pthread_mutex_lock(&asleep);
  while (__atomic_load_n(&pool.posted, __ATOMIC_ACQUIRE) == value) pthread_cond_wait(&woken, &asleep);
  pthread_mutex_unlock(&asleep);
}
void wake_all() {
  pthread_mutex_lock(&asleep);
  pthread_cond_broadcast(&woken);
  pthread_mutex_unlock(&asleep);
}
#endif

// Takes ranges of items, large ones first and then ever smaller ones, so that all threads finish at about the same time.
void work() {
  int64_t items = pool.items, threads = pool.wanted, first = __atomic_load_n(&pool.next, __ATOMIC_RELAXED);
  while (first < items) {
    int64_t some = (items - first) / (2 * threads), last = first + (some > pool.grain ? some : pool.grain);
    if (last > items) last = items;
    if (!__atomic_compare_exchange_n(&pool.next, &first, last, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) continue;
    pool.part(pool.task, first, last);
    first = __atomic_load_n(&pool.next, __ATOMIC_RELAXED);
  }
}

constexpr uint64_t OPEN = uint64_t(1) << 32;

// Enters the current work if it is open.
bool enter() {
  uint64_t state = __atomic_load_n(&pool.state, __ATOMIC_ACQUIRE);
  while (state & OPEN)
    if (__atomic_compare_exchange_n(&pool.state, &state, state + 1, true, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) return true;
  return false;
}

void *live(void *) {
  uint32_t seen = 0;
  for (;;) {
    int64_t end = 0;
    uint32_t posted;
    for (int turn = 0; (posted = __atomic_load_n(&pool.posted, __ATOMIC_ACQUIRE)) == seen; turn++) {
      breathe();
      if (turn % 64) continue;
      int64_t now = now_ns();
      if (!end) end = now + AWAKE_NS;
      if (now < end) continue;
      __atomic_fetch_add(&pool.sleeping, 1, __ATOMIC_SEQ_CST);
      sleep_while(seen);
      __atomic_fetch_sub(&pool.sleeping, 1, __ATOMIC_SEQ_CST);
    }
    seen = posted;
    if (enter()) {
      work();
      __atomic_fetch_sub(&pool.state, 1, __ATOMIC_RELEASE);
    }
  }
  return nullptr;
}

// Starts missing threads. A process created by fork has none of its parent's threads.
void start_threads() {
  if (pool.owner != getpid()) {
    pool.owner = getpid();
    pool.started = 1;
    pool.state &= ~(OPEN - 1);
    pool.sleeping = 0;
  }
  if (pool.started >= pool.wanted) return;
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  for (pthread_t thread; pool.started < pool.wanted; pool.started++)
    if (pthread_create(&thread, &attributes, live, nullptr)) break;
  pthread_attr_destroy(&attributes);
}

}  // namespace

namespace threads {

int32_t number() { return pool.wanted; }

void share(void (*part)(const void *, int64_t, int64_t), const void *task, int64_t items, int64_t grain) {
  if (items <= 0) return;
  // With two callers at once (two engines in one process), the second works alone.
  if (pool.wanted <= 1 || items <= grain || pthread_mutex_trylock(&one_caller)) return part(task, 0, items);
  start_threads();
  pool.part = part, pool.task = task, pool.items = items, pool.grain = grain, pool.next = 0;
  __atomic_fetch_add(&pool.state, OPEN, __ATOMIC_RELEASE);
  __atomic_fetch_add(&pool.posted, 1, __ATOMIC_SEQ_CST);
  if (__atomic_load_n(&pool.sleeping, __ATOMIC_SEQ_CST)) wake_all();
  work();
  // Close the work, so that no thread can enter. Those that did will finish what they took.
  uint64_t state = __atomic_add_fetch(&pool.state, OPEN, __ATOMIC_ACQ_REL);
  for (int turn = 0; state & (OPEN - 1); turn++) {
    breathe();
    if (turn > 4000) sched_yield();
    state = __atomic_load_n(&pool.state, __ATOMIC_ACQUIRE);
  }
  pthread_mutex_unlock(&one_caller);
}

}  // namespace threads

EXPORTED void tessera_cpu_use_threads(int32_t number) {
  pool.wanted = number < 1 ? 1 : number < MOST ? number : MOST;
}
