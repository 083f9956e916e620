// The C interface: which instruction set, and each kernel over all threads. Sizes were checked by the caller.
#include <cstring>

#include "kernels.h"
#include "packing.h"
#include "shares.h"
#include "threads.h"

namespace {

struct Known {
  const Kernels *kernels;
  bool (*here)();
};

// From the least to the best.
const Known KNOWN[] = {
    {&portable_kernels, [] { return true; }},
#if defined(__x86_64__)
    {&avx2_kernels, [] { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }},
    {&avx512_kernels,
     [] {
       return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
              __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
     }},
    {&avx512_vnni_kernels, [] { return KNOWN[2].here() && __builtin_cpu_supports("avx512vnni"); }},
    {&avx512_bf16_kernels, [] { return KNOWN[3].here() && __builtin_cpu_supports("avx512bf16"); }},
#endif
};

const Kernels *used = &portable_kernels;

constexpr int64_t SMALL = 1 << 13;  // elements, for which another thread is not worth while

// Rows to take at once.
int64_t grain_of(int64_t rows, int64_t width) { return rows * width <= SMALL ? rows : (SMALL + width - 1) / width; }

}  // namespace

#define EXPORTED extern "C" __attribute__((visibility("default")))

// The name of the number-th instruction set that this processor has, from the least to the best; null after the last.
EXPORTED const char *tessera_cpu_variant(int32_t number) {
  for (auto &known : KNOWN)
    if (known.here() && number-- == 0) return known.kernels->name;
  return nullptr;
}

// 0 where the processor has it; otherwise nothing changes.
EXPORTED int32_t tessera_cpu_use(const char *name) {
  for (auto &known : KNOWN)
    if (!std::strcmp(known.kernels->name, name) && known.here()) {
      used = known.kernels;
      return 0;
    }
  return -1;
}

// The weight of a kind, as Product says. weight: bf16 [n, k], or int8 [n, k] of whole numbers; stride: of its rows.
EXPORTED void tessera_cpu_pack(int32_t kind, const void *weight, int64_t stride, void *packed, int64_t n, int64_t k) {
  packing::Weight task{weight, stride, packed, n, k};
  threads::run(packing::BY_KIND[kind], task, (n + PANEL - 1) / PANEL);
}

EXPORTED void tessera_cpu_linear(int32_t kind, const Product *task) {
  threads::run(used->linear[kind], *task, (task->n + PANEL - 1) / PANEL);
}

EXPORTED void tessera_cpu_gate_up(int32_t kind, const Product *task) {
  threads::run(used->gate_up[kind], *task, task->n / PANEL);
  if (!task->rounded.elements) return;
  Quantise after{task->out, task->out_stride, task->rounded, task->n};
  threads::run(used->quantise, after, task->m, grain_of(task->m, task->n));
}

EXPORTED void tessera_cpu_quantise(const bf16 *x, int64_t x_stride, int8_t *to, int64_t stride, float *scale,
                                   int32_t *sums, int64_t m, int64_t k, int64_t group) {
  Quantise task{x, x_stride, Int8Rows{to, stride, scale, sums, group}, k};
  threads::run(used->quantise, task, m, grain_of(m, k));
}

EXPORTED void tessera_cpu_add_norm(const AddNorm *task) {
  threads::run(used->add_norm, *task, task->rows, grain_of(task->rows, task->n));
}

// x [tokens, (heads + 2 kv_heads) dim] -> q, and keys and values into the cache. heads: of x.
EXPORTED void tessera_cpu_heads_input(const Layer *layer, const Launch *launch, const bf16 *x, int64_t x_stride,
                                      int64_t heads, bf16 *q) {
  HeadsInput task{layer, launch, x, x_stride, heads, q};
  int64_t width = (heads + 2 * layer->cache.kv_heads) * layer->cache.dim;
  threads::run(used->heads_input, task, launch->tokens, grain_of(launch->tokens, width));
}

// work: room of `room` bytes. Returns 0, or how many bytes of room are needed, and then did nothing.
EXPORTED int64_t tessera_cpu_attention(const Layer *layer, const Launch *launch, const bf16 *q, bf16 *out, void *work,
                                       int64_t room) {
  return shares::attend(*used, Attention{layer, launch, q, out, nullptr, nullptr}, work, room);
}
