"""OLMo Hybrid: three of four layers are a gated delta net, with a norm before it and before its MLP; the others are
OLMo 2's, with norms behind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from tessera.errors import ModelError
from tessera.layers.attention import AttentionShape, BlockShape, RotaryTable
from tessera.layers.build import Build
from tessera.layers.delta_net import DeltaNetShape, Separate
from tessera.layers.norm import AddNorm, Norm
from tessera.models.decoder import Block, Decoder, DecoderConfig, build_decoder, mlp_of
from tessera.models.fields import Checkpoint, ConfigFields
from tessera.models.olmo import PostNormBlock
from tessera.models.qwen_next import LINEAR
from tessera.models.reading import FULL, read_attention, read_biases, read_decoder
from tessera.ops import AddSpec
from tessera.platform.attention import Caches
from tessera.platform.launch import Launch

# transformers' defaults for fields that config.json omits. An explicit null stays null.
_OLMO_HYBRID: dict[str, Any] = {
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 65536,
    "linear_conv_kernel_dim": 4,
    "linear_allow_neg_eigval": True,
}
_RESULT_EPS = 1e-5
"""Of the norm of a delta net's result, whatever rms_norm_eps is, as in transformers."""


class DeltaNetBlock:
    """Norms before the delta net and before the MLP. The whole sum is passed from block to block, as the other layers
    want it."""

    def __init__(self, build: Build, config: DecoderConfig, number: int, tables: RotaryTable) -> None:
        prefix, shape = f"model.layers.{number}", config.layers[number]
        first = _stored(build, prefix, "attention_layer_norm", "input_layernorm")
        second = _stored(build, prefix, "feedforward_layer_norm", "post_attention_layernorm")
        norm = f"{prefix}.{first}", Norm(config.eps, whole=True)
        self.delta_net = shape.block(build, f"{prefix}.{shape.name}", norm, tables)
        self.mlp = mlp_of(build, config, number)
        self.norm = AddNorm(build, f"{prefix}.{second}", config.hidden, Norm(config.eps), emit=self.mlp.wants)
        self.complete = build.group.all_reduce
        self.add = build.ops.bind("add", AddSpec(config.hidden, build.dtype))

    def attend(self, x: Tensor, residual: Tensor | None, launch: Launch, caches: Caches) -> tuple[Tensor, ...]:
        return self.delta_net(x, None, launch, caches)

    def transform(self, states: Sequence[Tensor]) -> tuple[Tensor, Tensor | None]:
        mixed, x = states
        normed, x = self.norm(self.delta_net.output(mixed), x)
        return self.add(self.complete(self.mlp(normed)), x), None


def olmo_hybrid(build: Build, checkpoint: Checkpoint, max_model_len: int) -> Decoder:
    fields = ConfigFields(checkpoint, _OLMO_HYBRID)
    return build_decoder(build, read_decoder(fields, _layers(fields, max_model_len)), _block, whole=True)


def _block(build: Build, config: DecoderConfig, number: int, tables: RotaryTable) -> Block:
    if isinstance(config.layers[number], DeltaNetShape):
        return DeltaNetBlock(build, config, number, tables)
    norm = _stored(build, f"model.layers.{number}", "post_attention_layernorm", "feedforward_layer_norm")
    return PostNormBlock(build, config, number, tables, norm)


def _stored(build: Build, prefix: str, name: str, other: str) -> str:
    """Which of two names a norm has in the checkpoint: transformers renames norms whatever the kind of layer."""
    stored = build.stored
    return other if stored is not None and stored.holds(f"{prefix}.{other}.weight") else name


def _layers(fields: ConfigFields, max_model_len: int) -> list[BlockShape]:
    attention = read_attention(fields, max_model_len, whole_norm=True, **read_biases(fields))
    if not _is_turned(fields):
        attention = replace(attention, rope=None)
    shapes: dict[str, BlockShape] = {FULL: attention, LINEAR: _delta_net(fields, attention)}
    number = fields.count("num_hidden_layers")
    kinds = fields.by_layer("layer_types", number, lambda kind: kind in shapes, f"{LINEAR} or {FULL}")
    if kinds is None:
        full = range(3, number, 4) or (number - 1,)
        kinds = [FULL if layer in full else LINEAR for layer in range(number)]
    return [shapes[kind] for kind in kinds]


def _is_turned(fields: ConfigFields) -> bool:
    """Whether there is a rotary embedding: where rope_theta is null, there is none."""
    rope = fields.table("rope_parameters").values
    said = rope if "rope_theta" in rope else fields.values
    return said.get("rope_theta", True) is not None


def _delta_net(fields: ConfigFields, attention: AttentionShape) -> DeltaNetShape:
    keys, values = (fields.count(f"linear_num_{name}_heads", attention.heads) for name in ("key", "value"))
    if values % keys:
        raise ModelError(f"linear_num_value_heads ({values}) is not a multiple of linear_num_key_heads ({keys}).")
    key_dim = fields.count("linear_key_head_dim", 3 * attention.hidden // (4 * keys))
    return DeltaNetShape(
        hidden=attention.hidden,
        key_heads=keys,
        value_heads=values,
        key_dim=key_dim,
        value_dim=fields.count("linear_value_head_dim", 2 * key_dim),
        kernel=fields.count("linear_conv_kernel_dim", least=2),
        eps=attention.eps,
        max_positions=attention.max_positions,
        norm_offset=attention.norm_offset,
        layout=Separate(),
        result_eps=_RESULT_EPS,
        beta_scale=2.0 if fields.flag("linear_allow_neg_eigval") else 1.0,
    )
