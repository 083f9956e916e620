// A heap that two processes share at one address: preloaded into a process, it replaces the C library's. What a pointer of that
// process points to is then there for the other process too, which maps the file `tessera_shared_heap` at HEAP. Memory is never
// returned to the system, only to the list of free pieces of its size.
#include <errno.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "heap.h"

#define EXPORTED extern "C" __attribute__((visibility("default")))

EXPORTED int tessera_shared_heap;
int tessera_shared_heap = -1;  // a file descriptor

namespace {

constexpr size_t UNIT = 16;
constexpr int STEPS = 4;              // sizes between one power of two and the next
constexpr int SIZES = 64 * STEPS;

struct Piece {
  size_t size;   // its number
  Piece *next;   // while it is free; its memory begins here
};

struct Before {  // what lies before the memory that was given out
  Piece *piece;
  size_t room;   // from there to the end of the piece
};

pthread_mutex_t one_at_a_time = PTHREAD_MUTEX_INITIALIZER;
Piece *free_pieces[SIZES];
char *unused, *end;

// The smallest size that has room for so many bytes.
size_t size_of(size_t bytes) {
  size_t size = 4 * STEPS;
  auto of = [](size_t number) { return (STEPS + number % STEPS) << (number / STEPS); };
  while (of(size) < bytes) size++;
  return size;
}
size_t bytes_of(size_t size) { return (STEPS + size % STEPS) << (size / STEPS); }

void begin() {
  int file = memfd_create("heap", 0);
  void *at = (void *)HEAP;
  if (file < 0 || ftruncate(file, HEAP_BYTES) ||
      mmap(at, HEAP_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE | MAP_FIXED_NOREPLACE, file, 0) != at)
    abort();
  tessera_shared_heap = file;
  unused = (char *)at, end = unused + HEAP_BYTES;
}

void *take(size_t bytes, size_t alignment) {
  if (alignment < UNIT) alignment = UNIT;
  if (bytes > HEAP_BYTES / 2) return nullptr;
  size_t size = size_of(sizeof(size_t) + sizeof(Before) + alignment + bytes);
  pthread_mutex_lock(&one_at_a_time);
  if (!unused) begin();
  Piece *piece = free_pieces[size];
  if (piece) {
    free_pieces[size] = piece->next;
  } else if ((size_t)(end - unused) >= bytes_of(size)) {
    piece = (Piece *)unused, unused += (bytes_of(size) + UNIT - 1) / UNIT * UNIT;
    piece->size = size;
  }
  pthread_mutex_unlock(&one_at_a_time);
  if (!piece) return nullptr;
  uintptr_t first = (uintptr_t)piece + sizeof(size_t) + sizeof(Before);
  auto *memory = (char *)((first + alignment - 1) / alignment * alignment);
  ((Before *)memory)[-1] = {piece, (size_t)((char *)piece + bytes_of(size) - memory)};
  return memory;
}

}  // namespace

EXPORTED void *malloc(size_t bytes) {
  void *memory = take(bytes, UNIT);
  if (!memory) errno = ENOMEM;
  return memory;
}

EXPORTED void free(void *memory) {
  if (!memory) return;
  Piece *piece = ((Before *)memory)[-1].piece;
  pthread_mutex_lock(&one_at_a_time);
  piece->next = free_pieces[piece->size];
  free_pieces[piece->size] = piece;
  pthread_mutex_unlock(&one_at_a_time);
}

EXPORTED void *calloc(size_t number, size_t bytes) {
  size_t total;
  void *memory = __builtin_mul_overflow(number, bytes, &total) ? nullptr : malloc(total);
  return memory ? memset(memory, 0, total) : nullptr;
}

EXPORTED size_t malloc_usable_size(void *memory) { return memory ? ((Before *)memory)[-1].room : 0; }

EXPORTED void *realloc(void *memory, size_t bytes) {
  size_t before = malloc_usable_size(memory);
  if (memory && bytes <= before) return memory;
  void *larger = malloc(bytes);
  if (larger && memory) memcpy(larger, memory, before), free(memory);
  return larger;
}

EXPORTED void *memalign(size_t alignment, size_t bytes) { return take(bytes, alignment); }
EXPORTED void *aligned_alloc(size_t alignment, size_t bytes) { return take(bytes, alignment); }
EXPORTED int posix_memalign(void **memory, size_t alignment, size_t bytes) {
  *memory = take(bytes, alignment);
  return *memory ? 0 : ENOMEM;
}
