// Memory to work in, for the thread that calls: kept from call to call, so that a step that is like the last one asks for
// none.
#pragma once
#include <cstdint>

// At least `bytes`, aligned to 64, until the same thread asks again.
void *room_of(int64_t bytes);
