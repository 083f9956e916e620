// Where both processes see the shared heap.
#pragma once
#include <stddef.h>
#include <stdint.h>

constexpr uintptr_t HEAP = 0x100000000000;
constexpr size_t HEAP_BYTES = size_t(32) << 30;  // of addresses; memory is taken where it is written
