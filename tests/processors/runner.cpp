// Calls functions of a library for another process, whose heap it shares: runner LIBRARY FILE. FILE is the descriptor of the heap.
// Requests come on standard input and results leave on standard output, both as they lie in memory.
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "heap.h"

namespace {

struct Request {
  char name[64];
  int64_t whole[10];
  int32_t gives_text;
};

struct Result {
  int64_t whole;
  char text[64];
};

// By the calling conventions of the processors here, arguments after those that a function takes do it no harm. So one type
// serves all functions.
using Function = int64_t (*)(int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t);

bool all(ssize_t (*move)(int, void *, size_t), int file, void *memory, size_t bytes) {
  for (ssize_t moved; bytes; memory = (char *)memory + moved, bytes -= moved)
    if ((moved = move(file, memory, bytes)) <= 0) return false;
  return true;
}
ssize_t send(int file, void *memory, size_t bytes) { return write(file, memory, bytes); }

}  // namespace

int main(int number, char **argument) {
  void *library = number == 3 ? dlopen(argument[1], RTLD_NOW) : nullptr;
  if (!library) return fprintf(stderr, "%s\n", number == 3 ? dlerror() : "usage: runner LIBRARY FILE"), 2;
  void *heap = mmap((void *)HEAP, HEAP_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE | MAP_FIXED_NOREPLACE,
                    atoi(argument[2]), 0);
  if (heap != (void *)HEAP) return perror("the shared heap"), 2;
  for (Request request; all(read, 0, &request, sizeof request);) {
    Result result{};
    auto *call = (Function)dlsym(library, request.name);
    if (!call) return fprintf(stderr, "%s\n", dlerror()), 2;
    int64_t *x = request.whole;
    result.whole = call(x[0], x[1], x[2], x[3], x[4], x[5], x[6], x[7], x[8], x[9]);
    if (request.gives_text && result.whole)
      strncpy(result.text, (const char *)result.whole, sizeof result.text - 1);
    if (!all(send, 1, &result, sizeof result)) return 1;
  }
  return 0;
}
