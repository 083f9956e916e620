// Distributes latent attention to threads: rows of few queries over the latents themselves, long rows also along their keys; rows of
// many queries over keys and values that are computed from latents, a few heads at a time.
#pragma once
#include "kernels.h"

namespace latents {

void attend(const Kernels &kernels, LatentAttention task);

}  // namespace latents
