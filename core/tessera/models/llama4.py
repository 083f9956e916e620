"""Llama 4: layers that attend within chunks and turn queries and keys, between layers that do neither but see the whole
text; experts beside one that every token uses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tessera.errors import ModelError
from tessera.layers.attention import AttentionShape, Temperature
from tessera.layers.build import Build
from tessera.layers.mlp import ExpertNames, Experts
from tessera.models.decoder import Decoder, DecoderNames, build_decoder
from tessera.models.fields import Checkpoint, ConfigFields
from tessera.models.llama import read_experts
from tessera.models.reading import FULL, read_attention, read_biases, read_decoder, turned_layers

CHUNKED = "chunked_attention"

# transformers' defaults for fields that config.json omits. An explicit null stays null.
_LLAMA4: dict[str, Any] = {
    "num_key_value_heads": 8,
    "head_dim": 128,
    "rms_norm_eps": 1e-5,
    "rope_theta": 5e5,
    "max_position_embeddings": 131072,
    "intermediate_size": 8192,
    "intermediate_size_mlp": 16384,
    "num_local_experts": 16,
    "num_experts_per_tok": 1,
    "interleave_moe_layer_step": 1,
    "use_qk_norm": True,
    "attn_temperature_tuning": True,
    "attention_chunk_size": 8192,
    "floor_scale": 8192,
    "attn_scale": 0.1,
}
_MOE = "model.layers.{layer}.feed_forward"
_NAMES = DecoderNames(mlp="feed_forward")


def llama4(build: Build, checkpoint: Checkpoint, max_model_len: int) -> Decoder:
    said = {**checkpoint, "no_rope_layers": checkpoint.get("no_rope_layers") or None}  # an empty list says nothing
    fields = ConfigFields(said, _LLAMA4)
    number = fields.count("num_hidden_layers")
    config = read_decoder(
        fields,
        _layers(fields, number, max_model_len),
        inner=fields.count("intermediate_size_mlp"),
        experts=_experts(fields),
        dense_layers=frozenset(range(number)) - _expert_layers(fields, number),
        names=_NAMES,
    )
    return build_decoder(build, config)


def _layers(fields: ConfigFields, number: int, max_model_len: int) -> Sequence[AttentionShape]:
    """Raises ModelError."""
    turned_by_layer = turned_layers(fields, interval=4)
    kinds = fields.by_layer("layer_types", number, lambda kind: kind in (CHUNKED, FULL), f"{CHUNKED} or {FULL}")
    if kinds is None:
        kinds = [CHUNKED if turned else FULL for turned in turned_by_layer]
    shape = read_attention(fields, max_model_len, style="pairs", **read_biases(fields))
    turned = replace(shape, head_norm=fields.flag("use_qk_norm"), norm_names=None)
    unturned = replace(shape, rope=None, temperature=_temperature(fields))
    chunk = _chunk(fields, max_model_len)
    return [
        replace(turned if turns else unturned, chunk=chunk if kind == CHUNKED else None)
        for turns, kind in zip(turned_by_layer, kinds, strict=True)
    ]


def _chunk(fields: ConfigFields, max_model_len: int) -> int | None:
    """Tokens of a chunk; None if no text is longer."""
    chunk = fields.count("attention_chunk_size")
    return chunk if chunk < max_model_len else None


def _temperature(fields: ConfigFields) -> Temperature | None:
    said = fields.get("attn_temperature_tuning")
    if not isinstance(said, bool | int):  # published as a number too
        raise ModelError("attn_temperature_tuning must be true or false in config.json.")
    return Temperature(fields.positive("floor_scale"), fields.number("attn_scale")) if said else None


def _expert_layers(fields: ConfigFields, number: int) -> frozenset[int]:
    """The layers with experts."""
    if fields.get("moe_layers") is None:
        step = fields.count("interleave_moe_layer_step")
        return frozenset(range(step - 1, number, step))
    return frozenset(fields.numbers("moe_layers"))


def _experts(fields: ConfigFields) -> Experts:
    gate, up, down = (f"{_MOE}.experts.{{}}.{name}_proj" for name in ("gate", "up", "down"))
    names = ExpertNames(f"{_MOE}.router", gate, up, down, shared=f"{_MOE}.shared_expert")
    inner = fields.count("intermediate_size")
    experts = read_experts(fields, "num_local_experts", names, inner, renormalise=False, scoring="sigmoid")
    return replace(experts, shared=inner, weighs_inputs=True)
