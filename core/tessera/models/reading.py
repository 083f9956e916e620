"""Turns config.json into a DecoderConfig: what families have in common, and which layers have a sliding window."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tessera.errors import ModelError
from tessera.layers.attention import AttentionShape, BlockShape
from tessera.layers.build import Build
from tessera.layers.rotary import Rope
from tessera.models.decoder import DecoderConfig
from tessera.models.fields import ConfigFields
from tessera.models.rope import AxisLayout, RopeReader, by_axis, in_sections

SLIDING, FULL = "sliding_attention", "full_attention"

Windows = Sequence[int | None]


def everywhere(fields: ConfigFields) -> Windows:
    """sliding_window, if set, on all layers."""
    return (sliding_window(fields),) * fields.count("num_hidden_layers")


def by_kind(fields: ConfigFields, kinds: Sequence[str]) -> Windows:
    """sliding_window on the layers of kind SLIDING."""
    window = sliding_window(fields)
    return tuple(window if kind == SLIDING else None for kind in kinds)


def layer_kinds(fields: ConfigFields, default: Sequence[str]) -> Sequence[str]:
    """layer_types, or the family's default. Raises ModelError."""
    number = fields.count("num_hidden_layers")
    said = fields.by_layer("layer_types", number, lambda kind: kind in (SLIDING, FULL), f"{SLIDING} or {FULL}")
    return default if said is None else said


def read_ropes(fields: ConfigFields, max_model_len: int, theta: float, sliding_theta: float) -> Mapping[str, Rope]:
    """The rotary embedding of each kind of layer. theta, sliding_theta: of layers of kind FULL and SLIDING, if
    rope_parameters has none of them. rope_scaling, of older configurations, is that of layers of kind FULL."""
    reader = RopeReader(fields, read_head_dim(fields), max_model_len)
    said, scaling = fields.table("rope_parameters"), fields.table("rope_scaling")
    full = ConfigFields(scaling.values, said.table(FULL).values)
    return {FULL: reader.read_rope(full, theta), SLIDING: reader.read_rope(said.table(SLIDING), sliding_theta)}


def turned_layers(fields: ConfigFields, interval: int) -> Sequence[bool]:
    """Whether each layer turns queries and keys: those of which no_rope_layers says 1, or, if it is omitted, all but
    every no_rope_layer_interval-th. interval: if that is omitted. Raises ModelError."""
    number = fields.count("num_hidden_layers")
    said = fields.by_layer("no_rope_layers", number, lambda entry: entry in (0, 1), "0 or 1")
    if said is None:
        interval = fields.count("no_rope_layer_interval", interval)
        return [(layer + 1) % interval != 0 for layer in range(number)]
    return [bool(entry) for entry in said]


def sliding_window(fields: ConfigFields) -> int | None:
    return None if fields.get("sliding_window") is None else fields.count("sliding_window")


def read_head_dim(fields: ConfigFields) -> int:
    """head_dim, or hidden_size / num_attention_heads if it is omitted."""
    return fields.count("head_dim", fields.count("hidden_size") // fields.count("num_attention_heads"))


def read_attention(fields: ConfigFields, max_model_len: int, **differs: Any) -> AttentionShape:
    """The attention of a layer. differs: fields of AttentionShape to override, among them a rope that is read
    differently, or None. Raises ModelError for a missing or invalid field."""
    hidden, heads = fields.count("hidden_size"), fields.count("num_attention_heads")
    kv_heads = fields.count("num_key_value_heads", heads)
    if heads % kv_heads:
        raise ModelError(f"num_attention_heads ({heads}) is not a multiple of num_key_value_heads ({kv_heads}).")
    head_dim = read_head_dim(fields)
    values: dict[str, Any] = {
        "hidden": hidden,
        "heads": heads,
        "kv_heads": kv_heads,
        "head_dim": head_dim,
        "scale": head_dim**-0.5,
        "max_positions": max_model_len,
        "causal": fields.flag("is_causal", default=True),
    }
    if "eps" not in differs:
        values["eps"] = fields.number("rms_norm_eps")
    if "rope" not in differs:
        values["rope"] = RopeReader(fields, head_dim, max_model_len).read()
    return AttentionShape(**{**values, **differs})


def in_images(
    build: Build,
    fields: ConfigFields,
    shape: AttentionShape,
    sections: Sequence[int],
    layout: AxisLayout = in_sections,
) -> AttentionShape:
    """The same where prompts may hold images, whose tokens have a place in height and width too. sections, layout: as
    of by_axis()."""
    if not build.spare_positions or shape.rope is None:
        return shape
    return replace(shape, rope=by_axis(fields, shape.rope, sections, layout))


def read_biases(fields: ConfigFields) -> dict[str, Any]:
    """attention_bias, which applies to all four projections."""
    bias = fields.flag("attention_bias")
    return {"bias": bias, "output_bias": bias}


def read_decoder(fields: ConfigFields, layers: Sequence[BlockShape], **differs: Any) -> DecoderConfig:
    """layers: at least one. differs: fields of DecoderConfig to override. Raises ModelError as read_attention does."""
    values: dict[str, Any] = {
        "architecture": str((fields.get("architectures") or ["?"])[0]),
        "vocab": fields.count("vocab_size"),
        "hidden": layers[0].hidden,
        "layers": tuple(layers),
        "eps": layers[0].eps,
        "max_positions": layers[0].max_positions,
        "tied": fields.flag("tie_word_embeddings"),
        "norm_offset": layers[0].norm_offset,
    }
    if "inner" not in differs:
        values["inner"] = fields.count("intermediate_size")
    if "activation" not in differs:
        values["activation"] = fields.activation("hidden_act", "silu")
    return DecoderConfig(**{**values, **differs})


def repeated(fields: ConfigFields, shape: AttentionShape) -> Sequence[AttentionShape]:
    """The same shape for every layer."""
    return (shape,) * fields.count("num_hidden_layers")


def windowed(shape: AttentionShape, windows: Windows) -> Sequence[AttentionShape]:
    """One layer per window."""
    return [replace(shape, window=window) for window in windows]
