"""Jamba: most layers are a Mamba, whose dt, B and C are normed, and one in every few is attention without rotary
embedding; one in every few has experts, the others an MLP."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tessera.errors import ModelError
from tessera.layers.attention import AttentionShape
from tessera.layers.build import Build
from tessera.layers.mamba import MambaShape, SelectionNorms
from tessera.layers.mlp import ExpertNames, Experts
from tessera.models.decoder import Decoder, DecoderNames, build_decoder
from tessera.models.fields import Checkpoint, ConfigFields
from tessera.models.llama import read_experts
from tessera.models.mamba import check_activation, read_rank
from tessera.models.reading import read_attention, read_decoder

# transformers' defaults for fields that config.json omits. An explicit null stays null.
_JAMBA: dict[str, Any] = {
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 262144,
    "num_experts": 16,
    "num_experts_per_tok": 2,
    "expert_layer_period": 2,
    "expert_layer_offset": 1,
    "attn_layer_period": 8,
    "attn_layer_offset": 4,
    "mamba_d_state": 16,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
    "mamba_dt_rank": "auto",
    "mamba_conv_bias": True,
}
_MLP = "feed_forward"
_NAMES = DecoderNames(mlp_norm="pre_ff_layernorm", mlp=_MLP, norm="model.final_layernorm")


def jamba(build: Build, checkpoint: Checkpoint, max_model_len: int) -> Decoder:
    fields = ConfigFields(checkpoint, _JAMBA)
    attention = replace(read_attention(fields, max_model_len), rope=None)
    mamba = _mamba(fields, attention)
    has_experts = _periodic(fields, "expert_layer")
    config = read_decoder(
        fields,
        [attention if attends else mamba for attends in _periodic(fields, "attn_layer")],
        experts=None if fields.count("num_experts") == 1 else _experts(fields),
        dense_layers=frozenset(number for number, sparse in enumerate(has_experts) if not sparse),
        names=_NAMES,
    )
    return build_decoder(build, config)


def _periodic(fields: ConfigFields, name: str) -> Sequence[bool]:
    """Which layers are those of `name`_period and `name`_offset."""
    period, offset = fields.count(f"{name}_period"), fields.count(f"{name}_offset", least=0)
    if offset >= period:
        raise ModelError(f"{name}_offset ({offset}) is not below {name}_period ({period}).")
    return [number % period == offset for number in range(fields.count("num_hidden_layers"))]


def _mamba(fields: ConfigFields, attention: AttentionShape) -> MambaShape:
    check_activation(fields)
    return MambaShape(
        hidden=attention.hidden,
        inner=fields.count("mamba_expand") * attention.hidden,
        rank=read_rank(fields, "mamba_dt_rank", attention.hidden),
        state_dim=fields.count("mamba_d_state"),
        kernel=fields.count("mamba_d_conv", least=2),
        eps=attention.eps,
        max_positions=attention.max_positions,
        bias=fields.flag("mamba_proj_bias"),
        conv_bias=fields.flag("mamba_conv_bias"),
        norms=SelectionNorms(attention.eps, weighted=True),
    )


def _experts(fields: ConfigFields) -> Experts:
    moe = f"model.layers.{{layer}}.{_MLP}"
    gate, up, down = (f"{moe}.experts.{{}}.{name}_proj" for name in ("gate", "up", "down"))
    names = ExpertNames(f"{moe}.router", gate, up, down)
    return read_experts(fields, "num_experts", names, fields.count("intermediate_size"), renormalise=False)
