"""What a config.json leaves out is what transformers takes for it."""

from __future__ import annotations

import json

import pytest
from transformers import (
    AXK2Config,
    BambaConfig,
    BloomConfig,
    Cohere2Config,
    DeepseekV2Config,
    DeepseekV3Config,
    DeepseekV32Config,
    Ernie4_5_MoeConfig,
    Ernie4_5Config,
    FalconConfig,
    FalconH1Config,
    FalconMambaConfig,
    Gemma2Config,
    Gemma3TextConfig,
    GemmaConfig,
    Glm4MoeConfig,
    Glm4MoeLiteConfig,
    GlmMoeDsaConfig,
    GptOssConfig,
    GraniteConfig,
    GraniteMoeHybridConfig,
    JambaConfig,
    KimiLinearConfig,
    Lfm2Config,
    Lfm2MoeConfig,
    Lfm3Config,
    Llama4TextConfig,
    LlamaConfig,
    Mamba2Config,
    MambaConfig,
    MiniCPM3Config,
    MiniMaxConfig,
    MiniMaxM2Config,
    MistralConfig,
    MixtralConfig,
    MllamaTextConfig,
    MptConfig,
    NemotronHConfig,
    Olmo2Config,
    Olmo3Config,
    OlmoHybridConfig,
    Phi3Config,
    PhimoeConfig,
    Qwen2Config,
    Qwen3_5MoeTextConfig,
    Qwen3_5TextConfig,
    Qwen3Config,
    Qwen3MoeConfig,
    Qwen3NextConfig,
    RecurrentGemmaConfig,
    RwkvConfig,
    SmolLM3Config,
    YoutuConfig,
    Zamba2Config,
    ZambaConfig,
    xLSTMConfig,
)
from transformers.models.lfm2.modeling_lfm2 import Lfm2MLP
from transformers.models.minimax.modeling_minimax import MiniMaxLightningAttention

from tessera.errors import ModelError
from tessera.layers.attention import Temperature
from tessera.layers.build import Build
from tessera.layers.rotary import LinearScaling
from tessera.models import falcon_h1
from tessera.models.alibi import alibi_slopes
from tessera.models.fields import ACTIVATIONS
from tessera.models.granite_hybrid import read_mamba2
from tessera.models.mllama import GatedCrossBlock
from tessera.ops import REFERENCE
from tessera.platform import BoundOps
from tessera.plugins import load_path
from tessera.plugins.builtin import NATIVE_MODELS
from tessera.reference import reference_backends
from tessera.testing import ReferencePlatform

CLASSES = {
    "LlamaForCausalLM": LlamaConfig,
    "MistralForCausalLM": MistralConfig,
    "Qwen2ForCausalLM": Qwen2Config,
    "Qwen3ForCausalLM": Qwen3Config,
    "MixtralForCausalLM": MixtralConfig,
    "Phi3ForCausalLM": Phi3Config,
    "SmolLM3ForCausalLM": SmolLM3Config,
    "GraniteForCausalLM": GraniteConfig,
    "GemmaForCausalLM": GemmaConfig,
    "Gemma2ForCausalLM": Gemma2Config,
    "Gemma3ForCausalLM": Gemma3TextConfig,
    "Olmo2ForCausalLM": Olmo2Config,
    "Olmo3ForCausalLM": Olmo3Config,
    "OlmoHybridForCausalLM": OlmoHybridConfig,
    "FalconForCausalLM": FalconConfig,
    "Cohere2ForCausalLM": Cohere2Config,
    "Ernie4_5ForCausalLM": Ernie4_5Config,
    "Ernie4_5_MoeForCausalLM": Ernie4_5_MoeConfig,
    "MiniMaxM2ForCausalLM": MiniMaxM2Config,
    "PhimoeForCausalLM": PhimoeConfig,
    "Qwen3MoeForCausalLM": Qwen3MoeConfig,
    "Glm4MoeForCausalLM": Glm4MoeConfig,
    "Qwen3NextForCausalLM": Qwen3NextConfig,
    "Qwen3_5ForCausalLM": Qwen3_5TextConfig,
    "Qwen3_5MoeForCausalLM": Qwen3_5MoeTextConfig,
}
LINEAR = {
    "linear_num_key_heads": "key_heads",
    "linear_num_value_heads": "value_heads",
    "linear_key_head_dim": "key_dim",
    "linear_value_head_dim": "value_dim",
    "linear_conv_kernel_dim": "kernel",
}
LATENT = {
    "DeepseekV2ForCausalLM": DeepseekV2Config,
    "DeepseekV3ForCausalLM": DeepseekV3Config,
    "AXK2ForCausalLM": AXK2Config,
    "DeepseekV32ForCausalLM": DeepseekV32Config,
    "Glm4MoeLiteForCausalLM": Glm4MoeLiteConfig,
    "GlmMoeDsaForCausalLM": GlmMoeDsaConfig,
    "MiniCPM3ForCausalLM": MiniCPM3Config,
    "YoutuForCausalLM": YoutuConfig,
}
INDEXED = ("AXK2ForCausalLM", "DeepseekV32ForCausalLM", "GlmMoeDsaForCausalLM")
CONVOLUTIONS = {"Lfm2ForCausalLM": Lfm2Config, "Lfm2MoeForCausalLM": Lfm2MoeConfig}
MAMBA2 = {
    "GraniteMoeHybridForCausalLM": GraniteMoeHybridConfig,
    "BambaForCausalLM": BambaConfig,
}
FALCON_H1 = "FalconH1ForCausalLM"
ZAMBA, ZAMBA2 = "ZambaForCausalLM", "Zamba2ForCausalLM"
MINIMAX = "MiniMaxForCausalLM"
SINGLE = {"NemotronHForCausalLM": NemotronHConfig, "Mamba2ForCausalLM": Mamba2Config}
ALIBI = {"BloomForCausalLM": BloomConfig, "MptForCausalLM": MptConfig}
MAMBA2_SIZES = {
    "heads": "mamba_n_heads",
    "groups": "mamba_n_groups",
    "head_dim": "mamba_d_head",
    "state_dim": "mamba_d_state",
    "kernel": "mamba_d_conv",
    "conv_bias": "mamba_conv_bias",
    "bias": "mamba_proj_bias",
    "step_limits": "time_step_limit",
}
MAMBA = {"MambaForCausalLM": MambaConfig, "FalconMambaForCausalLM": FalconMambaConfig}
JAMBA = "JambaForCausalLM"
GPT_OSS = "GptOssForCausalLM"
KIMI_LINEAR, LLAMA4 = "KimiLinearForCausalLM", "Llama4ForCausalLM"
LFM3 = "Lfm3ForCausalLM"
RWKV, XLSTM = "RwkvForCausalLM", "xLSTMForCausalLM"
RECURRENT_GEMMA, MLLAMA = "RecurrentGemmaForCausalLM", "MllamaForCausalLM"
ALWAYS_SAY_EPS = ("Llama", "Mistral", "Qwen2", "Qwen3", "Mixtral")
SPARSE = {
    "vocab_size": 30,
    "hidden_size": 64,
    "intermediate_size": 20,
    "num_hidden_layers": 7,
    "num_attention_heads": 32,
    "rms_norm_eps": 1e-6,
}


def config_of(architecture, checkpoint, dtype="float32"):
    device = ReferencePlatform().open(0)
    build = Build(BoundOps(REFERENCE, device), device, dtype, reference_backends())
    return load_path(NATIVE_MODELS[architecture])(build, checkpoint, 16).config


def test_every_family_is_looked_at():
    alone = {FALCON_H1, GPT_OSS, JAMBA, KIMI_LINEAR, LFM3, LLAMA4, MINIMAX, MLLAMA, RECURRENT_GEMMA, RWKV, XLSTM}
    families = CLASSES, LATENT, CONVOLUTIONS, MAMBA2, SINGLE, MAMBA, ALIBI, alone, {ZAMBA, ZAMBA2}
    assert set().union(*families) == set(NATIVE_MODELS)


def test_left_out_by_a_model_with_layers_for_images():
    theirs, device = MllamaTextConfig(), ReferencePlatform().open(0)
    build = Build(BoundOps(REFERENCE, device), device, "float32", reference_backends(), most_sources=10)
    ours = load_path(NATIVE_MODELS[MLLAMA])(build, {}, 16)
    config, layer = ours.config, ours.config.layers[0]
    assert (config.vocab - config.unwritten, config.hidden, config.inner) == (
        theirs.vocab_size, theirs.hidden_size, theirs.intermediate_size,
    )  # fmt: skip
    assert (len(config.layers), layer.heads, layer.kv_heads) == (
        theirs.num_hidden_layers, theirs.num_attention_heads, theirs.num_key_value_heads,
    )  # fmt: skip
    assert (config.eps, layer.rope.theta) == (theirs.rms_norm_eps, theirs.rope_parameters["rope_theta"])
    crossed = [number for number, block in enumerate(ours.blocks) if isinstance(block, GatedCrossBlock)]
    assert crossed == theirs.cross_attention_layers
    assert len(config_of(MLLAMA, {}).layers) == theirs.num_hidden_layers - len(crossed)
    with pytest.raises(ModelError, match="must name some of the layers, and not all"):
        config_of(MLLAMA, {"cross_attention_layers": list(range(40))})
    with pytest.raises(ModelError, match="must name some of the layers, and not all"):
        load_path(NATIVE_MODELS[MLLAMA])(build, {"cross_attention_layers": []}, 16)


@pytest.mark.parametrize("architecture", CLASSES)
@pytest.mark.parametrize(
    "given", [{}, {"use_sliding_window": True}, {"use_sliding_window": True, "max_window_layers": 1}]
)
def test_left_out(architecture, given):
    if not architecture.startswith(("Qwen", "SmolLM3")):
        given = {}
    sparse = SPARSE if architecture.startswith(ALWAYS_SAY_EPS) else {**SPARSE, "rms_norm_eps": None}
    if architecture == "Glm4MoeForCausalLM":  # half of a head is rotated, so it has at least 4 elements
        given = {"head_dim": 8}
    said = {name: value for name, value in {**sparse, **given}.items() if value is not None}
    theirs, ours = CLASSES[architecture](**said), config_of(architecture, said)
    everywhere = ["sliding_attention"] * SPARSE["num_hidden_layers"]
    kinds = getattr(theirs, "layer_types", None) or everywhere
    window = getattr(theirs, "sliding_window", None)
    kv_heads = getattr(theirs, "num_key_value_heads", None) or theirs.num_attention_heads
    for kind, layer in zip(kinds, ours.layers, strict=True):
        if kind == "linear_attention":
            assert {name: getattr(layer, own) for name, own in LINEAR.items()} == {
                name: getattr(theirs, name) for name in LINEAR
            }
            continue
        assert layer.kv_heads == (1 if architecture == "FalconForCausalLM" else kv_heads)
        assert layer.head_dim == (getattr(theirs, "head_dim", None) or 64 // 32)
        ropes = theirs.rope_parameters
        if layer.rope is not None:
            assert layer.rope.theta == ropes.get(kind, ropes)["rope_theta"]
            assert layer.rope.dim == layer.head_dim * ropes.get(kind, ropes).get("partial_rotary_factor", 1.0)
        assert layer.window == (window if kind == "sliding_attention" else None)
        assert layer.softcap == (theirs.attn_logit_softcapping if architecture == "Gemma2ForCausalLM" else None)
        if hasattr(theirs, "query_pre_attn_scalar"):
            assert layer.scale == theirs.query_pre_attn_scalar**-0.5
    assert ours.tied == theirs.tie_word_embeddings
    named = (getattr(theirs, name, None) for name in ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon"))
    assert ours.eps == next(filter(None, named))
    named = (getattr(theirs, name, None) for name in ("hidden_activation", "hidden_act", "activation"))
    assert ours.activation == ACTIVATIONS[next(filter(None, named))]
    assert ours.logits_cap == (getattr(theirs, "final_logit_softcapping", None) or 0.0)
    if hasattr(theirs, "no_rope_layers"):
        assert [layer.rope is not None for layer in ours.layers] == [bool(turned) for turned in theirs.no_rope_layers]
    if ours.experts is not None:
        check_experts(theirs, ours)
    if architecture == "GraniteForCausalLM":
        assert (ours.embedding_scale, ours.residual_multiplier) == (
            theirs.embedding_multiplier,
            theirs.residual_multiplier,
        )
        assert ours.logits_scale == 1 / theirs.logits_scaling
        assert ours.layers[0].scale == theirs.attention_multiplier
    if architecture == "FalconForCausalLM":
        assert ours.inner == theirs.ffn_hidden_size


def check_experts(theirs, ours):
    experts = getattr(theirs, "num_local_experts", None) or theirs.num_experts
    route = ours.experts.route
    assert (route.experts, route.top_k) == (experts, theirs.num_experts_per_tok)
    assert ours.experts.inner == getattr(theirs, "moe_intermediate_size", theirs.intermediate_size)
    assert route.renormalise == getattr(theirs, "norm_topk_prob", route.scoring != "sparsemixer")
    assert route.groups == getattr(theirs, "n_group", 1)
    assert route.top_groups == getattr(theirs, "topk_group", 1)
    assert route.scale == getattr(theirs, "routed_scaling_factor", 1.0)
    shared = getattr(theirs, "moe_num_shared_experts", getattr(theirs, "n_shared_experts", 0)) * ours.experts.inner
    assert ours.experts.shared == getattr(theirs, "shared_expert_intermediate_size", shared)
    dense = getattr(theirs, "moe_layer_start_index", getattr(theirs, "first_k_dense_replace", 0))
    assert ours.dense_layers == set(range(dense))


@pytest.mark.parametrize("said", [{}, {"sliding_window_pattern": 3}, {"sliding_window": 5, "logit_scale": 0.3}])
def test_cohere2_turns_heads_in_windows_alone(said):
    said = {**SPARSE, **said}
    theirs, ours = Cohere2Config(**said), config_of("Cohere2ForCausalLM", said)
    sliding = [kind == "sliding_attention" for kind in theirs.layer_types]
    assert [layer.rope is not None for layer in ours.layers] == sliding
    assert [layer.window for layer in ours.layers] == [theirs.sliding_window if slides else None for slides in sliding]
    assert ours.logits_scale == theirs.logit_scale


@pytest.mark.parametrize(
    "said",
    [{}, {"no_rope_layers": [0, 1, 1, 0, 1, 1, 1], "moe_layers": [0, 3], "use_qk_norm": False}, {"head_dim": 6}],
)
def test_left_out_of_llama4(said):
    said = {**{name: value for name, value in SPARSE.items() if name != "rms_norm_eps"}, **said}
    theirs, ours = Llama4TextConfig(**said), config_of(LLAMA4, {**said, "attention_chunk_size": 9})
    for kind, turned, layer in zip(theirs.layer_types, theirs.no_rope_layers, ours.layers, strict=True):
        assert (layer.heads, layer.kv_heads, layer.head_dim) == (32, theirs.num_key_value_heads, theirs.head_dim)
        assert layer.chunk == (9 if kind == "chunked_attention" else None)
        if turned:
            assert (layer.rope.theta, layer.style) == (theirs.rope_parameters["rope_theta"], "pairs")
            assert (layer.head_norm, layer.temperature) == (theirs.use_qk_norm, None)
        else:
            assert (layer.rope, layer.head_norm) == (None, False)
            assert layer.temperature == Temperature(theirs.floor_scale, theirs.attn_scale)
    assert (ours.tied, ours.eps, ours.inner) == (False, theirs.rms_norm_eps, theirs.intermediate_size_mlp)
    route, experts = ours.experts.route, ours.experts
    assert (route.experts, route.top_k) == (theirs.num_local_experts, theirs.num_experts_per_tok)
    assert (route.renormalise, route.scoring, experts.weighs_inputs) == (False, "sigmoid", True)
    assert experts.inner == experts.shared == theirs.intermediate_size
    assert ours.dense_layers == set(range(7)) - set(theirs.moe_layers)


def test_left_out_of_gpt_oss():
    """All but the sizes that every checkpoint names."""
    said = {name: SPARSE[name] for name in ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads")}
    theirs, ours = GptOssConfig(**said), config_of(GPT_OSS, said)
    yarn = theirs.rope_parameters
    for kind, layer in zip(theirs.layer_types, ours.layers, strict=True):
        assert (layer.heads, layer.kv_heads, layer.head_dim) == (32, theirs.num_key_value_heads, theirs.head_dim)
        assert layer.window == (theirs.sliding_window if kind == "sliding_attention" else None)
        assert (layer.sinks, layer.bias, layer.output_bias) == (True, theirs.attention_bias, theirs.attention_bias)
        scaling = layer.rope.scaling
        assert (layer.rope.theta, scaling.factor, scaling.truncate) == (yarn["rope_theta"], yarn["factor"], False)
        assert (scaling.original, scaling.fast, scaling.slow) == (4096.0, yarn["beta_fast"], yarn["beta_slow"])
    assert (ours.tied, ours.eps, ours.activation) == (False, theirs.rms_norm_eps, "silu")
    route, experts = ours.experts.route, ours.experts
    assert (route.experts, route.top_k) == (theirs.num_local_experts, theirs.num_experts_per_tok)
    assert (experts.inner, experts.bias) == (theirs.intermediate_size, True)
    assert experts.clamp == (theirs.swiglu_limit, theirs.swiglu_alpha)


def test_no_chunks_where_no_text_is_longer_than_one():
    assert {layer.chunk for layer in config_of(LLAMA4, SPARSE).layers} == {None}


@pytest.mark.parametrize("architecture", ALIBI)
@pytest.mark.parametrize("heads", [32, 6])
def test_left_out_with_linear_biases(architecture, heads):
    sizes = ("vocab_size", "hidden_size", "num_hidden_layers")
    said = {**{name: SPARSE[name] for name in sizes}, "hidden_size": 6 * heads, "num_attention_heads": heads}
    theirs, ours = ALIBI[architecture](**said), config_of(architecture, said)
    for layer in ours.layers:
        assert (layer.heads, layer.kv_heads, layer.head_dim, layer.rope) == (heads, heads, 6, None)
        assert (layer.slopes, layer.scale, layer.clip) == (alibi_slopes(heads), 6**-0.5, None)
        assert layer.bias == layer.output_bias == ours.mlp_bias == (architecture == "BloomForCausalLM")
    assert (ours.tied, ours.eps) == (theirs.tie_word_embeddings, theirs.layer_norm_epsilon)
    assert ours.inner == 4 * ours.hidden


@pytest.mark.parametrize(
    ("architecture", "own"),
    [
        ("BloomForCausalLM", {"n_embed": 24, "n_head": 4, "n_layer": 3}),
        ("MptForCausalLM", {"d_model": 24, "n_heads": 4, "n_layers": 3}),
    ],
)
def test_fields_of_linear_biases_have_names_of_their_own(architecture, own):
    ours = config_of(architecture, {"vocab_size": 30, **own})
    assert (ours.hidden, ours.layers[0].heads, len(ours.layers)) == (24, 4, 3)


def test_the_attention_of_mpt_is_in_a_table_of_its_own():
    said = {"alibi_bias_max": 5, "softmax_scale": 0.3, "clip_qkv": 6}
    layer = config_of("MptForCausalLM", {**SPARSE, "attn_config": said}).layers[0]
    assert (layer.slopes, layer.scale, layer.clip) == (alibi_slopes(32, 5), 0.3, 6.0)


@pytest.mark.parametrize("architecture", CONVOLUTIONS)
def test_left_out_beside_convolutions(architecture):
    said = {**SPARSE, "layer_types": ["conv", "conv", "full_attention"] * 2 + ["conv"]}
    theirs, ours = CONVOLUTIONS[architecture](**said), config_of(architecture, said)
    for kind, layer in zip(theirs.layer_types, ours.layers, strict=True):
        if kind == "conv":
            assert (layer.kernel, layer.bias) == (theirs.conv_L_cache, theirs.conv_bias)
        else:
            assert (layer.kv_heads, layer.head_dim) == (theirs.num_key_value_heads, 2)
            assert layer.rope.theta == theirs.rope_parameters["rope_theta"]
    assert (ours.tied, ours.eps, ours.activation) == (theirs.tie_word_embeddings, theirs.norm_eps, "silu")
    if ours.experts is None:
        assert ours.inner == Lfm2MLP(theirs).w1.out_features
        return
    route = ours.experts.route
    assert (route.experts, route.top_k) == (theirs.num_experts, theirs.num_experts_per_tok)
    assert (route.renormalise, route.scale) == (theirs.norm_topk_prob, theirs.routed_scaling_factor)
    assert (route.scoring, route.bias) == ("sigmoid", theirs.use_expert_bias)
    assert ours.experts.inner == theirs.moe_intermediate_size
    assert ours.dense_layers == set(range(theirs.num_dense_layers))


@pytest.mark.parametrize(
    "said",
    [
        {"intermediate_size": 1000},
        {"block_ff_dim": 1000, "block_multiple_of": 30},
        {"block_ff_dim": 1000, "block_ffn_dim_multiplier": 1.3, "block_multiple_of": 7},
        {"intermediate_size": 1000, "block_auto_adjust_ff_dim": False},
    ],
)
def test_the_inner_size_of_lfm2(said):
    said = {**SPARSE, "full_attn_idxs": [0], "tie_embedding": False, **said}
    ours, theirs = config_of("Lfm2ForCausalLM", said), Lfm2Config(**said)
    assert ours.inner == Lfm2MLP(theirs).w1.out_features
    assert ours.tied == theirs.tie_word_embeddings
    assert [layer.name for layer in ours.layers] == ["self_attn", *["conv"] * 6]


@pytest.mark.parametrize("architecture", LATENT)
def test_left_out_of_latent_attention(architecture):
    said = {name: value for name, value in SPARSE.items() if name != "rms_norm_eps"} | {"num_experts_per_tok": 4}
    theirs, ours = LATENT[architecture](**said), config_of(architecture, said)
    for layer in ours.layers:
        assert (layer.rank, layer.query_rank) == (theirs.kv_lora_rank, theirs.q_lora_rank)
        sizes = layer.nope_dim, layer.rope_dim, layer.value_dim
        assert sizes == (theirs.qk_nope_head_dim, theirs.qk_rope_head_dim, theirs.v_head_dim)
        assert layer.scale == (layer.nope_dim + layer.rope_dim) ** -0.5
        assert layer.rope.theta == theirs.rope_parameters["rope_theta"]
        paired = getattr(theirs, "rope_interleave", architecture != "MiniCPM3ForCausalLM")
        assert layer.style == ("pairs" if paired else "half")
        assert layer.bias == theirs.attention_bias
        if architecture in INDEXED:
            sizes = layer.indexer.heads, layer.indexer.dim, layer.limit
            assert sizes == (theirs.index_n_heads, theirs.index_head_dim, theirs.index_topk)
        if architecture == "AXK2ForCausalLM":
            assert layer.gate_rank == theirs.gated_norm_rank
    assert (ours.tied, ours.eps) == (theirs.tie_word_embeddings, theirs.rms_norm_eps)
    assert ours.activation == ACTIVATIONS[theirs.hidden_act]
    if architecture == "MiniCPM3ForCausalLM":
        assert ours.experts is None
        assert (ours.embedding_scale, 1 / ours.logits_scale) == (theirs.scale_emb, theirs.logits_scaling)
        assert ours.residual_multiplier == pytest.approx(theirs.scale_depth / 7**0.5)
        return
    if architecture == "YoutuForCausalLM":
        assert ours.experts is None
        return
    route, v2 = ours.experts.route, architecture == "DeepseekV2ForCausalLM"
    assert (route.experts, route.top_k) == (theirs.n_routed_experts, theirs.num_experts_per_tok)
    assert ours.experts.inner == theirs.moe_intermediate_size
    assert ours.experts.shared == theirs.moe_intermediate_size * theirs.n_shared_experts
    assert (route.groups, route.top_groups) == (theirs.n_group or 1, theirs.topk_group or 1)
    assert route.scale == theirs.routed_scaling_factor
    assert route.renormalise == theirs.norm_topk_prob
    assert (route.scoring, route.bias) == (("softmax", False) if v2 else ("sigmoid", True))
    kinds = getattr(theirs, "mlp_layer_types", ["sparse"] * 7)
    dense = {layer for layer, kind in enumerate(kinds) if kind == "dense"}
    assert ours.dense_layers == dense | set(range(getattr(theirs, "first_k_dense_replace", 0)))


@pytest.mark.parametrize(
    "said",
    [
        {},
        {
            "layer_types": ["full_attention"] + ["linear_attention"] * 6,
            "mlp_layer_types": ["sparse", "dense"] * 3 + ["dense"],
        },
        {"linear_attn_config": {"full_attn_layers": [2, 7], "kda_layers": [1, 3, 4, 5, 6], "num_heads": 6}},
        {"linear_attn_config": {"head_dim": 20, "short_conv_kernel_size": 3}, "first_k_dense_replace": 3},
        {"num_expert_group": 4, "topk_group": 2, "num_experts_per_token": 3, "num_shared_experts": 2},
    ],
)
def test_left_out_of_kimi_linear(said):
    said = {**{name: value for name, value in SPARSE.items() if name != "rms_norm_eps"}, **said}
    theirs, ours = KimiLinearConfig(**said), config_of(KIMI_LINEAR, said)
    for kind, layer in zip(theirs.layer_types, ours.layers, strict=True):
        if kind == "linear_attention":
            sizes = theirs.linear_num_heads, theirs.linear_head_dim, theirs.linear_conv_kernel_dim
            assert (layer.heads, layer.head_dim, layer.kernel) == sizes
        else:
            sizes = theirs.qk_nope_head_dim, theirs.qk_rope_head_dim, theirs.v_head_dim, theirs.kv_lora_rank
            assert (layer.nope_dim, layer.rope_dim, layer.value_dim, layer.rank) == sizes
            assert (layer.query_rank, layer.rope) == (theirs.q_lora_rank, None)
    assert (ours.eps, ours.tied) == (theirs.rms_norm_eps, theirs.tie_word_embeddings)
    route = ours.experts.route
    assert (route.experts, route.top_k) == (theirs.num_local_experts, theirs.num_experts_per_tok)
    assert (route.groups, route.top_groups) == (theirs.n_group, theirs.topk_group)
    assert (route.scale, route.renormalise) == (theirs.routed_scaling_factor, theirs.norm_topk_prob)
    assert ours.experts.inner == theirs.moe_intermediate_size
    assert ours.experts.shared == theirs.moe_intermediate_size * theirs.n_shared_experts
    assert ours.dense_layers == {layer for layer, kind in enumerate(theirs.mlp_layer_types[:7]) if kind == "dense"}


@pytest.mark.parametrize(
    "said",
    [
        {"indexer_types": ["full", "shared", "shared", "full", "shared", "full", "full"]},
        {"index_topk_pattern": "FSSSFSS"},
        {"index_topk_pattern": ["full", "full", *["shared"] * 5]},
        {"index_topk_freq": 3},
        {"index_topk_freq": 4, "index_skip_topk_offset": 3},
        {"index_topk_freq": 2, "index_skip_topk_offset": 0},
        {"index_topk_freq": 0},
    ],
)
def test_layers_that_have_indexers(said):
    said = {**SPARSE, "num_experts_per_tok": 4, **said}
    theirs = GlmMoeDsaConfig(**said).indexer_types
    if theirs[0] == "shared":
        with pytest.raises(ModelError, match="the first layer must have an indexer"):
            config_of("GlmMoeDsaForCausalLM", said)
        return
    ours = [layer.indexer is not None for layer in config_of("GlmMoeDsaForCausalLM", said).layers]
    assert ours == [kind == "full" for kind in theirs]


@pytest.mark.parametrize(
    "said", [{"first_k_dense_replace": 2, "moe_layer_freq": 3}, {"mlp_layer_types": ["sparse"] * 6 + ["dense"]}]
)
def test_dense_layers_of_axk2(said):
    said = {**SPARSE, **said}
    dense = config_of("AXK2ForCausalLM", said).dense_layers
    assert dense == {layer for layer, kind in enumerate(AXK2Config(**said).mlp_layer_types) if kind == "dense"}


def test_latent_attention_without_a_query_rank_has_no_biases():
    said = {**SPARSE, "num_experts_per_tok": 4, "q_lora_rank": None}
    assert config_of("DeepseekV3ForCausalLM", said).layers[0].query_rank is None
    with pytest.raises(ModelError, match="attention_bias without q_lora_rank is not supported"):
        config_of("DeepseekV3ForCausalLM", {**said, "attention_bias": True})
    with pytest.raises(ModelError, match="q_lora_rank is missing in config.json; indexers need it."):
        config_of("DeepseekV32ForCausalLM", said)


@pytest.mark.parametrize("architecture", MAMBA2)
@pytest.mark.parametrize("attends", [False, True])
def test_left_out_of_mamba2(architecture, attends):
    said = {name: value for name, value in SPARSE.items() if name != "rms_norm_eps"} | {"num_attention_heads": 8}
    if attends:
        bamba = architecture == "BambaForCausalLM"
        said |= {"attn_layer_indices": [2]} if bamba else {"layer_types": ["mamba"] * 2 + ["attention"] + ["mamba"] * 4}
    theirs, ours = MAMBA2[architecture](**said), config_of(architecture, said)
    for kind, layer in zip(theirs.layer_types, ours.layers, strict=True):
        if kind == "linear_attention":
            assert {own: getattr(layer, own) for own in MAMBA2_SIZES} == {
                own: getattr(theirs, name) for own, name in MAMBA2_SIZES.items()
            }
            continue
        assert (layer.heads, layer.kv_heads) == (8, theirs.num_key_value_heads)
        turned = layer.head_dim * theirs.rope_parameters.get("partial_rotary_factor", 1.0)
        assert layer.rope is None if architecture.startswith("Granite") else layer.rope.dim == turned
        assert layer.scale == getattr(theirs, "attention_multiplier", layer.head_dim**-0.5)
    assert [layer.name for layer in ours.layers].count("self_attn") == attends
    assert (ours.tied, ours.eps) == (theirs.tie_word_embeddings, theirs.rms_norm_eps)
    assert ours.activation == ACTIVATIONS[theirs.hidden_act]
    if ours.experts is not None:
        route = ours.experts.route
        assert (route.experts, route.top_k) == (theirs.num_local_experts, theirs.num_experts_per_tok)
        assert (ours.experts.inner, ours.experts.shared) == (theirs.intermediate_size, theirs.shared_intermediate_size)


@pytest.mark.parametrize("pattern", ["M*-E", ["mamba", "attention", "mlp", "moe"]])
def test_left_out_of_nemotron_h(pattern):
    name = "hybrid_override_pattern" if isinstance(pattern, str) else "layers_block_type"
    said = {"vocab_size": 30, "hidden_size": 64, "num_attention_heads": 8, name: pattern}
    theirs, ours = NemotronHConfig(**said), config_of("NemotronHForCausalLM", said)
    mamba, attention, mlp, moe = ours.layers
    sizes = mamba.heads, mamba.head_dim, mamba.groups, mamba.state_dim, mamba.kernel
    assert sizes[:2] == (theirs.mamba_num_heads, theirs.mamba_head_dim)
    assert sizes[2:] == (theirs.n_groups, theirs.ssm_state_size, theirs.conv_kernel)
    assert (mamba.conv_bias, mamba.bias) == (theirs.use_conv_bias, theirs.use_bias)
    assert mamba.step_limits == (theirs.time_step_min, float("inf"))
    assert (attention.kv_heads, attention.head_dim) == (theirs.num_key_value_heads, theirs.head_dim)
    assert attention.rope is None
    assert (mlp.inner, mlp.activation, mlp.bias) == (theirs.intermediate_size, theirs.mlp_hidden_act, theirs.mlp_bias)
    experts, route = moe.experts, moe.experts.route
    assert (route.experts, route.top_k) == (theirs.n_routed_experts, theirs.num_experts_per_tok)
    assert (route.renormalise, route.scale) == (theirs.norm_topk_prob, theirs.routed_scaling_factor)
    assert (experts.inner, experts.latent) == (theirs.moe_intermediate_size, theirs.moe_latent_size or 0)
    assert experts.shared == theirs.moe_shared_expert_intermediate_size
    assert (ours.tied, ours.eps) == (theirs.tie_word_embeddings, theirs.layer_norm_epsilon)


def test_left_out_of_mamba2_alone():
    said = {"vocab_size": 30, "hidden_size": 4096, "num_hidden_layers": 2}
    theirs, ours = Mamba2Config(**said), config_of("Mamba2ForCausalLM", said)
    for layer in ours.layers:
        assert (layer.heads, layer.head_dim, layer.groups) == (theirs.num_heads, theirs.head_dim, theirs.n_groups)
        assert (layer.state_dim, layer.kernel) == (theirs.state_size, theirs.conv_kernel)
        assert (layer.conv_bias, layer.bias) == (theirs.use_conv_bias, theirs.use_bias)
        assert layer.step_limits == theirs.time_step_limit
    assert (ours.tied, ours.eps) == (theirs.tie_word_embeddings, theirs.layer_norm_epsilon)


@pytest.mark.parametrize("architecture", MAMBA)
@pytest.mark.parametrize("more", [{}, {"intermediate_size": 50}, {"expand": 3, "time_step_rank": 9}])
def test_left_out_of_mamba(architecture, more):
    said = {"vocab_size": 30, "hidden_size": 60, "num_hidden_layers": 2, **more}
    theirs, ours = MAMBA[architecture](**said), config_of(architecture, said)
    for layer in ours.layers:
        assert (layer.inner, layer.rank) == (theirs.intermediate_size, theirs.time_step_rank)
        assert (layer.state_dim, layer.kernel) == (theirs.state_size, theirs.conv_kernel)
        assert (layer.conv_bias, layer.bias) == (theirs.use_conv_bias, theirs.use_bias)
        assert (layer.norms and layer.norms.eps) == getattr(theirs, "mixer_rms_eps", None)
    assert (len(ours.layers), ours.tied, ours.eps) == (2, theirs.tie_word_embeddings, theirs.layer_norm_epsilon)


@pytest.mark.parametrize("more", [{}, {"num_experts": 1}, {"attn_layer_period": 3, "attn_layer_offset": 0}])
def test_left_out_of_jamba(more):
    said = {name: value for name, value in SPARSE.items() if name != "rms_norm_eps"} | {
        "num_attention_heads": 8,
        **more,
    }
    theirs, ours = JambaConfig(**said), config_of(JAMBA, said)
    for kind, layer in zip(theirs.layers_block_type, ours.layers, strict=True):
        if kind == "attention":
            assert (layer.kv_heads, layer.rope) == (theirs.num_key_value_heads, None)
            continue
        assert (layer.inner, layer.rank) == (theirs.mamba_expand * theirs.hidden_size, theirs.mamba_dt_rank)
        assert (layer.state_dim, layer.kernel) == (theirs.mamba_d_state, theirs.mamba_d_conv)
        assert (layer.conv_bias, layer.bias) == (theirs.mamba_conv_bias, theirs.mamba_proj_bias)
        assert layer.norms.eps == theirs.rms_norm_eps
    assert (ours.tied, ours.eps) == (theirs.tie_word_embeddings, theirs.rms_norm_eps)
    assert ours.activation == ACTIVATIONS[theirs.hidden_act]
    assert (ours.experts is None) == (theirs.num_experts == 1)
    if ours.experts is not None:
        assert ours.dense_layers == {layer for layer, number in enumerate(theirs.layers_num_experts) if number == 1}
        route = ours.experts.route
        assert (route.experts, route.top_k) == (theirs.num_experts, theirs.num_experts_per_tok)
        assert (ours.experts.inner, ours.experts.shared) == (theirs.intermediate_size, 0)
        assert not route.renormalise


@pytest.mark.parametrize("more", [{}, {"attention_hidden_size": 40, "intermediate_size": 50, "rescale_every": 0}])
def test_left_out_of_rwkv(more):
    said = {"vocab_size": 30, "hidden_size": 60, "num_hidden_layers": 7, **more}
    theirs, ours = RwkvConfig(**said), config_of(RWKV, said)
    assert {layer.channels for layer in ours.layers} == {theirs.attention_hidden_size}
    assert (ours.inner, ours.eps, ours.tied) == (
        theirs.intermediate_size,
        theirs.layer_norm_epsilon,
        theirs.tie_word_embeddings,
    )


def test_rwkv_is_refused_in_float16_where_its_activations_are_halved():
    said = {"vocab_size": 30, "hidden_size": 60, "num_hidden_layers": 5}
    assert len(config_of(RWKV, said, "float16").layers) == 5
    with pytest.raises(ModelError, match="out of float16's range"):
        config_of(RWKV, {**said, "num_hidden_layers": 6}, "float16")


def test_left_out_of_xlstm():
    said = {"vocab_size": 30, "num_blocks": 2, "num_heads": 5, "hidden_size": 60}
    theirs, ours = xLSTMConfig(**said, num_hidden_layers=2), config_of(XLSTM, said)
    for layer in ours.layers:
        assert layer.key_dim == int(theirs.hidden_size * theirs.qk_dim_factor) // theirs.num_heads
        assert layer.head_dim == int(theirs.hidden_size * theirs.v_dim_factor) // theirs.num_heads
        assert (layer.cap, layer.eps, layer.state_eps) == (theirs.gate_soft_cap, theirs.norm_eps, theirs.eps)
    assert (len(ours.layers), ours.inner, ours.tied) == (theirs.num_blocks, 192, theirs.tie_word_embeddings)
    assert (ours.logits_cap, theirs.use_bias) == (theirs.output_logit_soft_cap, False)


def test_left_out_of_lfm3():
    said = {"vocab_size": 30, "hidden_size": 64, "intermediate_size": 20, "num_hidden_layers": 10} | {
        "num_attention_heads": 8
    }
    theirs, ours = Lfm3Config(**said), config_of(LFM3, said)
    for kind, layer in zip(theirs.layer_types, ours.layers, strict=True):
        if kind == "conv":
            assert (layer.kernel, layer.bias) == (theirs.conv_L_cache, theirs.conv_bias)
            continue
        rope = theirs.rope_parameters[kind]
        share = layer.rope.scaling.share if kind == "full_attention" else None
        assert (layer.rope.theta, share) == (rope["rope_theta"], rope.get("partial_rotary_factor"))
        assert layer.window == (theirs.sliding_window if kind == "sliding_attention" else None)
        assert (layer.head_dim, layer.kv_heads) == (theirs.head_dim, theirs.num_key_value_heads)
        assert (bool(layer.head_gate), layer.bias) == (theirs.use_attention_gate, theirs.attention_bias)
    assert (ours.tied, ours.eps, ours.inner) == (
        theirs.tie_word_embeddings,
        theirs.norm_eps,
        theirs.intermediate_size,
    )
    assert bool(ours.names.after_mlp) == theirs.use_sandwich_norm


@pytest.mark.parametrize("more", [{}, {"lru_width": 40, "block_types": ["attention", "recurrent"]}])
def test_left_out_of_recurrent_gemma(more):
    said = {"vocab_size": 30, "hidden_size": 64, "intermediate_size": 20, "num_hidden_layers": 5} | {
        "num_attention_heads": 8,
        **more,
    }
    theirs, ours = RecurrentGemmaConfig(**said), config_of(RECURRENT_GEMMA, said)
    for kind, layer in zip(theirs.layers_block_type, ours.layers, strict=True):
        if kind == "sliding_attention":
            rope = theirs.rope_parameters
            assert (layer.window, layer.kv_heads) == (theirs.attention_window_size, theirs.num_key_value_heads)
            assert (layer.rope.dim, layer.rope.theta) == (8 * rope["partial_rotary_factor"], rope["rope_theta"])
            assert (layer.bias, layer.output_bias) == (theirs.attention_bias, True)
        else:
            assert (layer.channels, layer.heads) == (theirs.lru_width, theirs.num_attention_heads)
            assert layer.kernel == theirs.conv1d_width
    assert (ours.tied, ours.eps, ours.logits_cap) == (
        theirs.tie_word_embeddings,
        theirs.rms_norm_eps,
        theirs.logits_soft_cap,
    )
    assert ours.activation == ACTIVATIONS[theirs.hidden_activation]


@pytest.mark.parametrize(
    "more", [{}, {"mamba_d_ssm": None, "mamba_expand": 4}, {"mamba_rms_norm": True, "mamba_norm_before_gate": False}]
)
def test_left_out_of_falcon_h1(monkeypatch, more):
    made = []

    def seen(*args, **more):
        made.append(read_mamba2(*args, **more))
        return made[0]

    monkeypatch.setattr(falcon_h1, "read_mamba2", seen)
    said = {name: value for name, value in SPARSE.items() if name != "rms_norm_eps"} | {
        "num_attention_heads": 8,
        **more,
    }
    theirs, ours, (mamba,) = FalconH1Config(**said), config_of(FALCON_H1, said), made
    assert {own: getattr(mamba, own) for own in MAMBA2_SIZES} == {
        own: getattr(theirs, name) for own, name in MAMBA2_SIZES.items()
    }
    assert (mamba.normed, mamba.gate_first) == (theirs.mamba_rms_norm, not theirs.mamba_norm_before_gate)
    assert (mamba.output_bias, mamba.multipliers) == (theirs.projectors_bias, (1.0,) * 5)
    for layer in ours.layers:
        assert (layer.kv_heads, layer.scale) == (theirs.num_key_value_heads, 8**-0.5)
        assert layer.rope.theta == theirs.rope_parameters["rope_theta"]
    assert (ours.tied, ours.eps) == (theirs.tie_word_embeddings, theirs.rms_norm_eps)
    assert (ours.embedding_scale, ours.residual_multiplier, ours.logits_scale) == (1.0, 1.0, 1.0)


@pytest.mark.parametrize(
    "more",
    [
        {"num_hidden_layers": 12},
        {"num_hidden_layers": 9, "attn_layer_period": 3, "attn_layer_offset": 0, "attention_head_dim": 20},
        {"num_hidden_layers": 2, "layers_block_type": ["hybrid", "mamba"], "mamba_proj_bias": True},
    ],
)
def test_left_out_of_zamba(more):
    said = {"vocab_size": 30, "hidden_size": 64, "intermediate_size": 50, "num_attention_heads": 16, **more}
    theirs, ours = ZambaConfig(**said), config_of(ZAMBA, said)
    for kind, layer in zip(theirs.layers_block_type, ours.layers, strict=True):
        if kind == "hybrid":
            assert (layer.kv_heads, layer.head_dim) == (theirs.num_key_value_heads, theirs.attention_head_dim)
            assert (layer.scale, layer.rope) == ((theirs.attention_head_dim / 2) ** -0.5, None)
            continue
        assert layer.heads * layer.head_dim == theirs.mamba_expand * theirs.hidden_size
        assert (layer.heads, layer.rank) == (theirs.n_mamba_heads, theirs.mamba_dt_rank)
        assert (layer.state_dim, layer.kernel) == (theirs.mamba_d_state, theirs.mamba_d_conv)
        assert (layer.bias, layer.conv_bias) == (theirs.mamba_proj_bias, theirs.mamba_conv_bias)
    assert (ours.tied, ours.eps, ours.inner) == (True, theirs.rms_norm_eps, theirs.intermediate_size)


@pytest.mark.parametrize(
    "more", [{}, {"layers_block_type": ["mamba", "hybrid"], "num_hidden_layers": 2, "use_mem_rope": True}]
)
def test_left_out_of_zamba2(more):
    said = {"vocab_size": 30, "hidden_size": 64, "num_attention_heads": 8, **more}
    theirs, ours = Zamba2Config(**said), config_of(ZAMBA2, said)
    for kind, layer in zip(theirs.layers_block_type, ours.layers, strict=True):
        if kind == "hybrid":
            assert (layer.kv_heads, layer.head_dim) == (theirs.num_key_value_heads, theirs.attention_head_dim)
            assert layer.scale == (theirs.attention_head_dim / 2) ** -0.5
            turned = theirs.rope_parameters["rope_theta"] if theirs.use_mem_rope else None
            assert (layer.rope and layer.rope.theta) == turned
            continue
        assert (layer.heads, layer.head_dim, layer.groups) == (
            theirs.n_mamba_heads,
            theirs.mamba_headdim,
            theirs.mamba_ngroups,
        )
        assert (layer.state_dim, layer.kernel) == (theirs.mamba_d_state, theirs.mamba_d_conv)
        assert (layer.bias, layer.conv_bias) == (theirs.add_bias_linear, True)
        assert layer.step_limits == (theirs.time_step_min, float("inf"))
    assert (ours.tied, ours.eps, ours.inner) == (True, theirs.rms_norm_eps, theirs.intermediate_size)


@pytest.mark.parametrize(
    "more",
    [{}, {"layer_types": ["linear_attention"] * 6 + ["full_attention"], "mlp_alpha_factor": 2, "sliding_window": 9}],
)
def test_left_out_of_minimax(more):
    said = {name: value for name, value in SPARSE.items() if name != "rms_norm_eps"} | {
        "num_attention_heads": 8,
        **more,
    }
    theirs, ours = MiniMaxConfig(**said), config_of(MINIMAX, said)
    for number, (kind, layer) in enumerate(zip(theirs.layer_types, ours.layers, strict=True)):
        if kind == "full_attention":
            assert (layer.kv_heads, layer.head_dim, layer.window) == (
                theirs.num_key_value_heads,
                8,
                theirs.sliding_window,
            )
            assert (layer.rope.theta, layer.rope.dim) == (theirs.rope_parameters["rope_theta"], 8)
            continue
        rate = MiniMaxLightningAttention(theirs, number).slope_rate.flatten()
        assert layer.log_decay == pytest.approx((-rate).tolist())
        assert (layer.heads, layer.head_dim) == (8, 8)
    assert ours.tied == theirs.tie_word_embeddings
    assert ours.eps == theirs.rms_norm_eps / theirs.mlp_alpha_factor**2
    assert ours.residual_multiplier == theirs.mlp_beta_factor / theirs.mlp_alpha_factor
    route = ours.experts.route
    assert (route.experts, route.top_k, route.renormalise) == (
        theirs.num_local_experts,
        theirs.num_experts_per_tok,
        True,
    )
    assert ours.experts.inner == theirs.intermediate_size


def test_minimax_turns_as_much_of_a_head_as_it_says():
    assert config_of(MINIMAX, {**SPARSE, "num_attention_heads": 8, "rotary_dim": 4}).layers[0].rope.dim == 4


@pytest.mark.parametrize("architecture", MAMBA2)
@pytest.mark.parametrize("most", [None, float("inf"), {"__float__": "Infinity"}])
def test_a_limit_of_steps_may_be_none(architecture, most):
    said = {**SPARSE, "num_attention_heads": 8, "time_step_limit": [0.1, most]}
    assert config_of(architecture, said).layers[0].step_limits == (0.1, float("inf"))


@pytest.mark.parametrize(
    "said",
    [
        {"rope_theta": 7e5},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 7e5}},
        {"rope_theta": 7e5, "rope_scaling": {"type": "linear", "factor": 2.0}},
        {"rope_theta": 7e5, "rope_scaling": {"rope_type": "linear", "factor": 2}},
        {"rope_theta": 1e5, "rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 7e5}},
    ],
)
def test_both_forms_of_the_rotary_embedding(said):
    rope = config_of("LlamaForCausalLM", {**SPARSE, **said}).layers[0].rope
    assert rope.theta == 7e5
    scaled = said.get("rope_scaling") or (said.get("rope_parameters") or {}).get("factor")
    assert rope.scaling == (LinearScaling(2.0) if scaled else None)


def test_both_forms_of_a_rotary_embedding_for_each_kind_of_layer():
    old = {
        "rope_theta": 7e5,
        "rope_local_base_freq": 9e3,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
        "sliding_window_pattern": 3,
    }
    new = {
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 7e5},
            "sliding_attention": {"rope_type": "default", "rope_theta": 9e3},
        },
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 3,
    }
    ropes, others = ([x.rope for x in config_of("Gemma3ForCausalLM", {**SPARSE, **said}).layers] for said in (old, new))
    assert ropes == others
    assert [(rope.theta, rope.scaling) for rope in ropes[1:3]] == [(9e3, None), (7e5, LinearScaling(8.0))]


def test_the_length_of_training_is_the_models_length_where_it_is_left_out():
    scaling = {"rope_type": "yarn", "factor": 4.0}
    said = {**SPARSE, "rope_scaling": scaling, "max_position_embeddings": 32}
    assert config_of("LlamaForCausalLM", said).layers[0].rope.scaling.original == 32
    said["original_max_position_embeddings"] = 24
    assert config_of("LlamaForCausalLM", said).layers[0].rope.scaling.original == 24


@pytest.mark.parametrize("family", ["Gemma", "Gemma2", "Gemma3"])
def test_the_scale_of_the_embedding_has_the_dtype_of_the_weights(family):
    wide = {**SPARSE, "hidden_size": 3072}
    assert config_of(f"{family}ForCausalLM", wide, "bfloat16").embedding_scale == 55.5
    assert config_of(f"{family}ForCausalLM", wide).embedding_scale == pytest.approx(3072**0.5)


@pytest.mark.parametrize("architecture", CLASSES)
def test_null_is_null(architecture):
    nulls = {
        "num_key_value_heads": None,
        "sliding_window": None,
        "head_dim": None,
        "rope_scaling": None,
        "partial_rotary_factor": None,
    }
    layers = config_of(architecture, json.loads(json.dumps({**SPARSE, **nulls}))).layers
    kv_heads = 1 if architecture == "FalconForCausalLM" else 32
    attention = [layer for layer in layers if layer.name == "self_attn"]
    assert {(layer.kv_heads, layer.head_dim, layer.window) for layer in attention} == {(kv_heads, 2, None)}
