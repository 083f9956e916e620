// Distributes attention to threads: rows in tiles, and long rows also along their keys, whose parts are combined afterwards.
#pragma once
#include "kernels.h"

namespace shares {

void attend(const Kernels &kernels, Attention task);
void encode(const Kernels &kernels, Encoding task);

}  // namespace shares
