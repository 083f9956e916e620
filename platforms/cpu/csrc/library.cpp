// The C interface: which instruction set, packing, and each kernel over all threads. Sizes were checked by the caller.
#include <cstring>

#include "kernels.h"
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
    {&avx512_bf16_kernels, [] { return KNOWN[2].here() && __builtin_cpu_supports("avx512bf16"); }},
#endif
};

const Kernels *used = &portable_kernels;

constexpr int64_t SMALL = 1 << 14;  // elements, for which waking threads would take longer

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

// W [n, k] with a row stride -> as Linear says.
EXPORTED void tessera_cpu_pack(const bf16 *weight, int64_t stride, bf16 *packed, int64_t n, int64_t k) {
  struct Task {
    const bf16 *weight;
    int64_t stride;
    bf16 *packed;
    int64_t n, k;
  } task{weight, stride, packed, n, k};
  Part<Task> part = [](const Task &task, int64_t first, int64_t last) {
    int64_t pairs = (task.k + 1) / 2;
    for (int64_t panel = first; panel < last; panel++)
      for (int64_t j = 0; j < PANEL; j++) {
        int64_t row = panel * PANEL + j;
        bf16 *to = task.packed + panel * pairs * 2 * PANEL + 2 * j;
        const bf16 *from = task.weight + row * task.stride;
        for (int64_t i = 0; i < 2 * pairs; i++)
          to[i / 2 * 2 * PANEL + i % 2] = row < task.n && i < task.k ? from[i] : 0;
      }
  };
  threads::run(part, task, (n + PANEL - 1) / PANEL);
}

EXPORTED void tessera_cpu_linear(const bf16 *x, int64_t x_stride, const bf16 *packed, const bf16 *bias, bf16 *out,
                        int64_t out_stride, int64_t m, int64_t n, int64_t k) {
  Linear task{x, x_stride, packed, bias, out, out_stride, m, n, k};
  threads::run(used->linear, task, (n + PANEL - 1) / PANEL);
}

EXPORTED void tessera_cpu_gate_up(const bf16 *x, int64_t x_stride, const bf16 *packed, bf16 *out, int64_t out_stride, int64_t m,
                         int64_t n, int64_t k, int32_t activation) {
  GateUp task{x, x_stride, packed, out, out_stride, m, n, k, (Activation)activation};
  threads::run(used->gate_up, task, n / PANEL);
}

EXPORTED void tessera_cpu_add_norm(const bf16 *x, int64_t x_stride, const bf16 *residual, int64_t residual_stride,
                          const bf16 *weight, bf16 *sum, bf16 *out, int64_t rows, int64_t n, float eps, float offset,
                          float multiplier) {
  AddNorm task{x, x_stride, residual, residual_stride, weight, sum, out, n, eps, offset, multiplier};
  threads::run(used->add_norm, task, rows, rows * n <= SMALL);
}

// x [tokens, (heads + 2 kv_heads) dim] -> q, and keys and values into the cache. heads: of x.
EXPORTED void tessera_cpu_heads_input(const Layer *layer, const Launch *launch, const bf16 *x, int64_t x_stride,
                                      int64_t heads, bf16 *q) {
  HeadsInput task{layer, launch, x, x_stride, heads, q};
  bool small = launch->tokens * (heads + 2 * layer->cache.kv_heads) * layer->cache.dim <= SMALL;
  threads::run(used->heads_input, task, launch->tokens, small);
}

// work: room of `room` bytes. Returns 0, or how many bytes of room are needed, and then did nothing.
EXPORTED int64_t tessera_cpu_attention(const Layer *layer, const Launch *launch, const bf16 *q, bf16 *out, void *work,
                                       int64_t room) {
  return shares::attend(*used, Attention{layer, launch, q, out, nullptr, nullptr}, work, room);
}
