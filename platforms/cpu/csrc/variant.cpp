// The kernels of one instruction set; compiled once for each, with the matching compiler flags. Everything that a header defines
// is in the variant's own namespace; otherwise the linker would keep only one of several functions with the same name, whatever
// processor it was compiled for.
#include "single.h"

#if defined(__AVX512F__)
#include "simd/avx512.h"
#elif defined(__AVX2__)
#include "simd/avx2.h"
#elif defined(__ARM_FEATURE_SVE)
#include "simd/sve.h"
#elif defined(WITH_INTRINSICS) && defined(__aarch64__)
#include "simd/neon.h"
#elif defined(__POWER9_VECTOR__)
#include "simd/vsx.h"
#else
#include "simd/portable.h"
#endif

#if defined(__ARM_FEATURE_MATMUL_INT8)
#include "terms/bf16_fours.h"
#include "terms/codes_by_two.h"
#else
#if defined(__MMA__)
#include "terms/bf16_outer.h"
#elif defined(__AVX512BF16__)
#include "terms/bf16_pairs.h"
#else
#include "terms/bf16_widened.h"
#endif
#include "terms/codes_by_row.h"
#endif

#include "exponent.h"
#include "gemm.h"
#if defined(__AMX_TILE__)
#include "tiles.h"
namespace products = VARIANT::tiles;
#else
namespace products = VARIANT::gemm;
#endif
#include "quantise.h"
#include "norm.h"
#include "layer_norm.h"
#include "activate.h"
#include "scale.h"
#include "gate.h"
#include "experts.h"
#include "routing.h"
#include "lora.h"
#include "lookup.h"
#include "heads.h"
#include "attention.h"
#include "encoder.h"
#include "convolution.h"
#include "delta_rule.h"
#include "state_space.h"
#include "gated_norm.h"
#include "latent.h"
#include "draw.h"
#include "cut.h"
#include "rank.h"

#define JOINED(a, b) a##b
#define TABLE(name) JOINED(name, _kernels)
#define TEXT(name) #name
#define NAME(name) TEXT(name)

using namespace VARIANT;

extern const Kernels TABLE(VARIANT) = {
    NAME(VARIANT),
    {products::OF_BF16, gemm::OF_CODES, gemm::OF_FLOATS},
    gemm::units,
    quantise::quantise,
    norm::add_norm,
    {layer_norm::rows<bf16>, layer_norm::rows<float>},
    {activate::rows<bf16>, activate::rows<float>},
    {scale::rows<bf16>, scale::rows<float>},
    {gate::rows<bf16>, gate::rows<float>},
    {gate::sigmoid<bf16>, gate::sigmoid<float>},
    experts::widen,
    {routing::route<bf16>, routing::route<float>},
    {experts::gather<bf16>, experts::gather<float>},
    {experts::join<bf16>, experts::join<float>},
    lora::rows,
    {lookup::rows<bf16>, lookup::rows<float>},
    {lookup::packed_rows<lookup::Bf16>, lookup::packed_rows<lookup::Coded>, lookup::packed_rows<lookup::Floats>},
    heads::heads_input,
    attention::attention,
    attention::join,
    {encoder::attention<bf16>, encoder::attention<float>},
    {convolution::rows<bf16>, convolution::rows<float>},
    {convolution::gated_rows<bf16>, convolution::gated_rows<float>},
    {delta_rule::heads<bf16>, delta_rule::heads<float>},
    {state_space::heads<bf16>, state_space::heads<float>},
    {gated_norm::groups<bf16>, gated_norm::groups<float>},
    {latent::input<bf16>, latent::input<float>},
    {latent::absorb<bf16>, latent::absorb<float>},
    {latent::attention<bf16>, latent::attention<float>},
    latent::join,
    {latent::values<bf16>, latent::values<float>},
    {latent::expand<bf16>, latent::expand<float>},
    {latent::of_heads<bf16>, latent::of_heads<float>},
    {logits::survey<bf16>, logits::survey<float>},
    {draw::draw<bf16>, draw::draw<float>},
    {draw::weigh<bf16>, draw::weigh<float>},
    {cut::cut<bf16>, cut::cut<float>},
    {rank::rank<bf16>, rank::rank<float>},
    simd::ROWS,
};
