"""Nemotron-H, whose layers each are a Mamba 2, attention, an MLP or experts alone, and models of nothing but Mamba 2
(Codestral Mamba)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from tessera.errors import ModelError
from tessera.layers.attention import BlockShape, RotaryTable
from tessera.layers.build import Build
from tessera.layers.mamba2 import Mamba2Shape
from tessera.layers.mlp import ExpertNames, Experts
from tessera.layers.mlp_block import ExpertsShape, MLPShape
from tessera.layers.norm import Norm
from tessera.models.decoder import Decoder, DecoderConfig, DecoderNames, build_decoder
from tessera.models.fields import Checkpoint, ConfigFields
from tessera.models.glm import read_groups
from tessera.models.granite_hybrid import read_step_limits
from tessera.models.llama import read_experts
from tessera.models.reading import read_attention, read_decoder
from tessera.platform.attention import Caches
from tessera.platform.launch import Launch

# transformers' defaults for fields that config.json omits. An explicit null stays null.
_ALIKE: dict[str, Any] = {"layer_norm_epsilon": 1e-5, "conv_kernel": 4, "n_groups": 8, "use_conv_bias": True}
_NEMOTRON_H: dict[str, Any] = {
    **_ALIKE,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 4096,
    "intermediate_size": 21504,
    "mlp_hidden_act": "relu2",
    "ssm_state_size": 128,
    "mamba_num_heads": 128,
    "mamba_head_dim": 64,
    "time_step_min": 0.001,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 7688,
    "moe_shared_expert_intermediate_size": 7688,
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.0,
}
_MAMBA2: dict[str, Any] = {**_ALIKE, "num_heads": 128, "head_dim": 64, "state_size": 128, "expand": 2}
_NAMES = DecoderNames(embedding="backbone.embeddings", layers="backbone.layers", norm="backbone.norm_f")
_LETTERS = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
"""Kinds of layers in hybrid_override_pattern."""
_KINDS = {**{kind: kind for kind in _LETTERS.values()}, "linear_attention": "mamba", "full_attention": "attention"}
"""The same in layers_block_type, then and now."""
_DEFAULT = ["mamba", "moe", "attention", "mlp"]


class SingleBlock:
    """x + part(norm(x))."""

    def __init__(self, build: Build, config: DecoderConfig, number: int, tables: RotaryTable) -> None:
        prefix = f"{config.names.layers}.{number}"
        norm = f"{prefix}.norm", Norm(config.eps)
        self.part = config.layers[number].block(build, f"{prefix}.mixer", norm, tables)

    def attend(self, x: Tensor, residual: Tensor | None, launch: Launch, caches: Caches) -> tuple[Tensor, ...]:
        return self.part(x, residual, launch, caches)

    def transform(self, states: Sequence[Tensor]) -> tuple[Tensor, Tensor | None]:
        mixed, residual = states
        return self.part.output(mixed), residual


def nemotron_h(build: Build, checkpoint: Checkpoint, max_model_len: int) -> Decoder:
    """Layers that predict further tokens are not read."""
    fields = ConfigFields(checkpoint, _NEMOTRON_H)
    attention = read_attention(fields, max_model_len, rope=None, eps=fields.number("layer_norm_epsilon"))
    mamba = _mamba2(
        fields,
        max_model_len,
        act="mamba_hidden_act",
        heads=fields.count("mamba_num_heads"),
        head_dim=fields.count("mamba_head_dim"),
        state_dim=fields.count("ssm_state_size"),
        step_limits=(fields.number("time_step_min"), math.inf),
    )
    if fields.get("mlp_hidden_act") != "relu2":
        raise ModelError("an mlp_hidden_act other than relu2 is not supported.")
    alone: dict[str, Any] = {
        "hidden": attention.hidden,
        "activation": "relu2",
        "eps": attention.eps,
        "max_positions": max_model_len,
    }
    mlp = MLPShape(**alone, inner=fields.count("intermediate_size"), bias=fields.flag("mlp_bias"))
    kinds = _kinds(fields)
    shapes: dict[str, BlockShape] = {"mamba": mamba, "attention": attention, "mlp": mlp}
    if "moe" in kinds:
        shapes["moe"] = ExpertsShape(**alone, experts=_experts(fields))
    return single_decoder(build, fields, [shapes[kind] for kind in kinds])


def _experts(fields: ConfigFields) -> Experts:
    """They have no gate. In some models they take a latent, a product of x. Raises ModelError."""
    latent = 0 if fields.get("moe_latent_size") is None else fields.count("moe_latent_size")
    if latent and fields.flag("mlp_bias"):
        raise ModelError("mlp_bias is not supported with moe_latent_size in config.json.")
    names = ExpertNames(
        "{layer}.gate",
        gate="",
        up="{layer}.experts.{}.up_proj",
        down="{layer}.experts.{}.down_proj",
        bias="{layer}.gate.e_score_correction_bias",
        shared="{layer}.shared_experts",
        latent_in="{layer}.fc1_latent_proj",
        latent_out="{layer}.fc2_latent_proj",
    )
    experts = read_experts(
        fields,
        "n_routed_experts",
        names,
        fields.count("moe_intermediate_size"),
        scoring="sigmoid",
        bias=True,
        renormalise=fields.flag("norm_topk_prob"),
        scale=fields.number("routed_scaling_factor"),
        **read_groups(fields, scored_by=2),
    )
    return replace(
        experts,
        shared=fields.count("moe_shared_expert_intermediate_size"),
        shared_bias=fields.flag("mlp_bias"),
        router_dtype="float32",
        latent=latent,
    )


def mamba2(build: Build, checkpoint: Checkpoint, max_model_len: int) -> Decoder:
    fields = ConfigFields(checkpoint, _MAMBA2)
    shape = _mamba2(
        fields,
        max_model_len,
        act="hidden_act",
        heads=fields.count("num_heads"),
        head_dim=fields.count("head_dim"),
        state_dim=fields.count("state_size"),
        step_limits=read_step_limits(fields),
    )
    wide = fields.count("expand") * shape.hidden
    if shape.inner != wide:
        raise ModelError(f"num_heads ({shape.heads}) heads are not expand times hidden_size ({wide}) elements.")
    return single_decoder(build, fields, [shape] * fields.count("num_hidden_layers"))


def _mamba2(fields: ConfigFields, max_model_len: int, *, act: str, **differs: Any) -> Mamba2Shape:
    """act: the field that names the activation. differs: what the two families have fields of their own for."""
    if fields.activation(act, "silu") != "silu":
        raise ModelError(f"{act} other than silu is not supported with mamba.")
    heads, groups = differs["heads"], fields.count("n_groups")
    if heads % groups:
        raise ModelError(f"the number of mamba's heads ({heads}) is not a multiple of n_groups ({groups}).")
    return Mamba2Shape(
        hidden=fields.count("hidden_size"),
        groups=groups,
        kernel=fields.count("conv_kernel", least=2),
        eps=fields.number("layer_norm_epsilon"),
        max_positions=max_model_len,
        bias=fields.flag("use_bias"),
        output_bias=fields.flag("use_bias"),
        conv_bias=fields.flag("use_conv_bias"),
        **differs,
    )


def _kinds(fields: ConfigFields) -> list[str]:
    """Of all layers: as layers_block_type says, or the letters of hybrid_override_pattern."""
    said, pattern = fields.get("layers_block_type"), fields.get("hybrid_override_pattern")
    named = [_LETTERS.get(letter) for letter in pattern] if said is None and isinstance(pattern, str) else said
    named = _DEFAULT if named is None else named
    kinds = [_KINDS.get(str(kind)) for kind in named] if isinstance(named, list) else []
    if not kinds or None in kinds:
        raise ModelError("layers_block_type in config.json must say mamba, attention, mlp or moe for each layer.")
    return [str(kind) for kind in kinds]


def single_decoder(build: Build, fields: ConfigFields, layers: Sequence[BlockShape]) -> Decoder:
    """A decoder of SingleBlocks, whose weights are called as Mamba's."""
    config = read_decoder(fields, layers, inner=0, activation="", names=_NAMES)
    return build_decoder(build, config, SingleBlock)
