// Scratch memory for the calling thread, kept from call to call, so that a step like the last one allocates nothing.
#pragma once
#include <cstdint>

// At least `bytes`, aligned to 64, valid until the same thread calls again.
void *room_of(int64_t bytes);
