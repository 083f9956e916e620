// Attention dealt out to threads: rows in tiles, long rows also along their keys, whose parts are joined afterwards.
#pragma once
#include "kernels.h"

namespace shares {

// Returns 0, or the bytes of work that are needed where `room` is less; nothing is done then.
int64_t attend(const Kernels &kernels, Attention task, void *work, int64_t room);

}  // namespace shares
