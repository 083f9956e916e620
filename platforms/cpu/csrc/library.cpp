// The C interface: selects the instruction set, and runs or records calls. Callers have validated all sizes.
#include <cstring>

#include "calls.h"
#include "edits.h"
#include "exported.h"
#include "packing.h"
#include "processor.h"
#include "sampling.h"
#include "tape.h"
#include "threads.h"

const Kernels *used = &portable_kernels;

namespace {

struct Known {
  const Kernels *kernels;
  bool (*here)();
};

// Worst to best, as far as the compiler knows them.
const Known KNOWN[] = {
    {&portable_kernels, [] { return true; }},
#if defined(WITH_AVX2)
    {&avx2_kernels, processor::has_avx2},
#endif
#if defined(WITH_AVX512)
    {&avx512_kernels, processor::has_avx512},
#endif
#if defined(WITH_AVX512_VNNI)
    {&avx512_vnni_kernels, processor::has_avx512_vnni},
#endif
#if defined(WITH_AVX512_BF16)
    {&avx512_bf16_kernels, processor::has_avx512_bf16},
#endif
#if defined(WITH_AMX)
    {&amx_kernels, processor::has_amx},
#endif
#if defined(WITH_NEON)
    {&neon_kernels, [] { return true; }},
#endif
#if defined(WITH_NEON_DOTPROD)
    {&neon_dotprod_kernels, processor::has_neon_dotprod},
#endif
#if defined(WITH_NEON_BF16)
    {&neon_bf16_kernels, processor::has_neon_bf16},
#endif
#if defined(WITH_SVE_256)
    {&sve_256_kernels, processor::has_sve_256},
#endif
#if defined(WITH_SVE_256_BF16)
    {&sve_256_bf16_kernels, processor::has_sve_256_bf16},
#endif
#if defined(WITH_SVE_512)
    {&sve_512_kernels, processor::has_sve_512},
#endif
#if defined(WITH_VSX)
    {&vsx_kernels, processor::has_vsx},
#endif
#if defined(WITH_MMA)
    {&mma_kernels, processor::has_mma},
#endif
};

}  // namespace

// The name of the number-th instruction set that this processor supports, worst to best; null after the last.
EXPORTED const char *tessera_cpu_variant(int32_t number) {
  for (auto &known : KNOWN)
    if (known.here() && number-- == 0) return known.kernels->name;
  return nullptr;
}

// Selects an instruction set. Returns 0 on success; otherwise the selection is unchanged.
EXPORTED int32_t tessera_cpu_use(const char *name) {
  for (auto &known : KNOWN)
    if (!std::strcmp(known.kernels->name, name) && known.here()) {
      used = known.kernels;
      return 0;
    }
  return -1;
}

// Packs a weight [n, k] of bf16 or float (see Product). stride: of its rows, size: of an element, both in bytes.
EXPORTED void tessera_cpu_pack(const void *weight, int64_t stride, void *packed, int64_t n, int64_t k, int64_t size) {
  packing::Weight task{weight, stride, packed, n, k, size};
  threads::run<packing::Weight>(packing::pack, task, (n + PANEL - 1) / PANEL);
}

// Packs the codes of a weight (see Product). stored: see packing::Stored; stride: of its rows, in bytes.
EXPORTED void tessera_cpu_pack_codes(int32_t codes, int32_t stored, const void *weight, int64_t stride, void *packed,
                                     int64_t n, int64_t k) {
  packing::CodedWeight task{{weight, stride, packed, n, k, 0}, (Codes)codes, (packing::Stored)stored};
  threads::run<packing::CodedWeight>(packing::pack_codes, task, (n + PANEL - 1) / PANEL);
}

EXPORTED void tessera_cpu_linear(int32_t kind, const Product *task) {
  tape::now_or_later(calls::Multiply{(Kind)kind, *task});
}

EXPORTED void tessera_cpu_gate_up(int32_t kind, const Product *task) {
  tape::now_or_later(calls::MultiplyGated{(Kind)kind, *task});
}

EXPORTED void tessera_cpu_quantise(const bf16 *x, int64_t x_stride, const Int8Rows *to, int64_t m, int64_t k) {
  tape::now_or_later(calls::QuantiseRows{{x, x_stride, *to, k}, m});
}

EXPORTED void tessera_cpu_add_norm(const AddNorm *task) { tape::now_or_later(calls::NormRows{*task}); }

EXPORTED void tessera_cpu_layer_norm(const LayerNorm *task) { tape::now_or_later(calls::LayerNormRows{*task}); }

EXPORTED void tessera_cpu_activate(const Activate *task) { tape::now_or_later(calls::ActivateRows{*task}); }

EXPORTED void tessera_cpu_scale(const Scale *task) { tape::now_or_later(calls::ScaleRows{*task}); }

EXPORTED void tessera_cpu_gate(const Gate *task) { tape::now_or_later(calls::GateRows{*task}); }

EXPORTED void tessera_cpu_sigmoid_gate(const SigmoidGate *task) { tape::now_or_later(calls::SigmoidGateRows{*task}); }

EXPORTED void tessera_cpu_widen(const Widening *task) { tape::now_or_later(calls::WidenRows{*task}); }

EXPORTED void tessera_cpu_route(const Routing *task) { tape::now_or_later(calls::RouteRows{*task}); }

EXPORTED void tessera_cpu_mix(const Mixture *task) { tape::now_or_later(calls::MixExperts{*task}); }

EXPORTED void tessera_cpu_lora(const Lora *task) { tape::now_or_later(calls::AddLora{*task}); }

EXPORTED void tessera_cpu_look_up(const Lookup *task, int64_t rows) {
  tape::now_or_later(calls::LookUp{*task, rows});
}

EXPORTED void tessera_cpu_look_up_packed(int32_t kind, const PackedLookup *task) {
  tape::now_or_later(calls::LookUpPacked{(Kind)kind, *task});
}

// Writes q, and stores keys and values in the cache. x [tokens, (heads + 2 kv_heads) dim]; heads: query heads in x.
EXPORTED void tessera_cpu_heads_input(const Layer *layer, const Launch *launch, const bf16 *x, int64_t x_stride,
                                      int64_t heads, bf16 *q) {
  tape::now_or_later(calls::TakeHeads{*layer, {nullptr, launch, x, x_stride, heads, q}});
}

EXPORTED void tessera_cpu_attention(const Layer *layer, const Launch *launch, const bf16 *q, bf16 *out) {
  tape::now_or_later(calls::Attend{*layer, {nullptr, launch, q, out, nullptr, nullptr}});
}

// Turns q in place, unless it is null, and stores latents in the cache.
EXPORTED void tessera_cpu_latent_input(const LatentLayer *layer, const LatentInput *task) {
  tape::now_or_later(calls::TakeLatents{*layer, *task});
}

EXPORTED void tessera_cpu_latent_attention(const LatentLayer *layer, const LatentAttention *task) {
  tape::now_or_later(calls::AttendLatents{*layer, *task});
}

EXPORTED void tessera_cpu_encode(const Layer *layer, const Encoding *task) {
  tape::now_or_later(calls::Encode{*layer, *task});
}

EXPORTED void tessera_cpu_convolution(const Convolution *task) { tape::now_or_later(calls::Convolve{*task}); }

EXPORTED void tessera_cpu_delta_rule(const DeltaRule *task) { tape::now_or_later(calls::ApplyDeltaRule{*task}); }

EXPORTED void tessera_cpu_state_space(const StateSpace *task) { tape::now_or_later(calls::RenewStates{*task}); }

EXPORTED void tessera_cpu_gated_norm(const GatedNorm *task) { tape::now_or_later(calls::NormGated{*task}); }


EXPORTED void tessera_cpu_sample(const Sampling *task) { sampling::sample(*used, *task); }

EXPORTED void tessera_cpu_mask(const Masking *task) { edits::mask(*task); }

EXPORTED void tessera_cpu_take(const Taking *task) { edits::take(*task); }

EXPORTED void tessera_cpu_edit(const Editing *task) { edits::edit(*task); }

EXPORTED void tessera_cpu_penalise(const Penalising *task) { edits::penalise(*task); }

EXPORTED void tessera_cpu_logprobs(const Logprobs *task) { sampling::logprobs(*used, *task); }
