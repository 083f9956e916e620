// Attention dealt out to threads: rows in tiles, long rows also along their keys, whose parts are joined afterwards.
#pragma once
#include "kernels.h"

namespace shares {

void attend(const Kernels &kernels, Attention task);

}  // namespace shares
