"""Kimi Linear: three of four layers are Kimi delta attention, the others latent attention without rotary embedding;
experts as in DeepSeek V3."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tessera.layers.attention import BlockShape
from tessera.layers.build import Build
from tessera.layers.kimi_delta import KimiDeltaShape
from tessera.layers.latent import LatentShape
from tessera.layers.mlp import GatedNames
from tessera.models.decoder import Decoder, DecoderNames, build_decoder
from tessera.models.deepseek import read_dense_layers, read_latent
from tessera.models.fields import Checkpoint, ConfigFields, renamed
from tessera.models.glm import read_shared_experts
from tessera.models.qwen_next import LINEAR
from tessera.models.reading import FULL, read_decoder

# transformers' defaults for fields that config.json omits. An explicit null stays null.
_KIMI_LINEAR: dict[str, Any] = {
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 1048576,
    "kv_lora_rank": 512,
    "q_lora_rank": None,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "moe_intermediate_size": 1024,
    "n_routed_experts": 256,
    "num_experts_per_tok": 8,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "routed_scaling_factor": 2.446,
    "first_k_dense_replace": 1,
    "linear_num_heads": 32,
    "linear_head_dim": 128,
    "linear_conv_kernel_dim": 4,
}
_OWN_NAMES = {
    "model_max_length": "max_position_embeddings",
    "moe_renormalize": "norm_topk_prob",
    "num_expert_group": "n_group",
    "num_experts": "n_routed_experts",
    "num_local_experts": "n_routed_experts",
    "num_experts_per_token": "num_experts_per_tok",
    "num_shared_experts": "n_shared_experts",
}
_LINEAR_NAMES = {
    "num_heads": "linear_num_heads",
    "head_dim": "linear_head_dim",
    "short_conv_kernel_size": "linear_conv_kernel_dim",
}
_MOE = "block_sparse_moe"


def kimi_linear(build: Build, checkpoint: Checkpoint, max_model_len: int) -> Decoder:
    said = renamed(checkpoint, _OWN_NAMES)
    linear = ConfigFields(said).table("linear_attn_config")
    own = {common: linear.get(name) for name, common in _LINEAR_NAMES.items() if linear.get(name) is not None}
    fields = ConfigFields({**said, **own}, _KIMI_LINEAR)
    dense = read_dense_layers(fields, fields.count("first_k_dense_replace", least=0))
    config = read_decoder(
        fields,
        _layers(fields, linear, max_model_len),
        experts=read_shared_experts(fields, mlp=_MOE, gated=GatedNames("w1", "w3", "w2")),
        dense_layers=dense,
        names=DecoderNames(mlp=_dense_name(build, dense)),
    )
    return build_decoder(build, config)


def _dense_name(build: Build, dense: frozenset[int]) -> str:
    """The name of dense layers' MLPs: transformers gives them the one of experts."""
    stored = build.stored
    renames = stored is not None and any(stored.holds(f"model.layers.{n}.{_MOE}.gate_proj.weight") for n in dense)
    return _MOE if renames else "mlp"


def _layers(fields: ConfigFields, linear: ConfigFields, max_model_len: int) -> list[BlockShape]:
    latent = replace(read_latent(fields, max_model_len), rope=None)
    shapes: dict[str, BlockShape] = {FULL: latent, LINEAR: _delta(fields, latent)}
    number = fields.count("num_hidden_layers")
    kinds = fields.by_layer("layer_types", number, lambda kind: kind in shapes, f"{LINEAR} or {FULL}")
    if kinds is None:
        full = linear.numbers("full_attn_layers") or range(5, number + 1, 4)  # from 1 on
        kinds = [FULL if layer + 1 in full else LINEAR for layer in range(number)]
    return [shapes[kind] for kind in kinds]


def _delta(fields: ConfigFields, latent: LatentShape) -> KimiDeltaShape:
    return KimiDeltaShape(
        hidden=latent.hidden,
        heads=fields.count("linear_num_heads"),
        head_dim=fields.count("linear_head_dim"),
        kernel=fields.count("linear_conv_kernel_dim", least=2),
        eps=latent.eps,
        max_positions=latent.max_positions,
    )
