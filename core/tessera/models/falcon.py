"""Falcon: layer norms, an ungated MLP in parallel with attention rather than after it, and one tensor of queries, keys
and values by groups of heads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from tessera.errors import ModelError
from tessera.layers.attention import AttentionBlock, RotaryTable
from tessera.layers.build import Build
from tessera.layers.embedding import vocabulary_ends
from tessera.layers.mlp import MLP
from tessera.layers.norm import AddLayerNorm, LayerNorm
from tessera.layers.qkv import Grouped
from tessera.models.decoder import Block, Decoder, DecoderConfig
from tessera.models.fields import Checkpoint, ConfigFields
from tessera.models.reading import read_attention, read_decoder, repeated
from tessera.ops import AddSpec
from tessera.platform.attention import Caches
from tessera.platform.launch import Launch

# transformers' defaults for fields that config.json omits. An explicit null stays null.
_FALCON: dict[str, Any] = {
    "layer_norm_epsilon": 1e-5,
    "multi_query": True,
    "parallel_attn": True,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": True,
}


class ParallelBlock:
    """x + attention(norm(x)) + mlp(norm(x)). norms: the names of attention's norm and of the MLP's own, if any."""

    def __init__(
        self, build: Build, config: DecoderConfig, number: int, tables: RotaryTable, norms: tuple[str, str | None]
    ) -> None:
        prefix, (first, second) = f"transformer.h.{number}", norms
        self.norm = AddLayerNorm(build, f"{prefix}.{first}", config.hidden, config.eps)
        self.mlp_norm = LayerNorm(build, f"{prefix}.{second}", config.hidden, config.eps) if second else None
        self.attention = _attention(build, config, number, tables)
        self.mlp = _mlp(build, config, number)
        self.add = build.ops.bind("add", AddSpec(config.hidden, build.dtype))

    def attend(self, x: Tensor, residual: Tensor | None, launch: Launch, caches: Caches) -> tuple[Tensor, ...]:
        normed, residual = self.norm(x, residual)
        return *self.attention(normed, residual, launch, caches), normed

    def transform(self, states: Sequence[Tensor]) -> tuple[Tensor, Tensor | None]:
        mixed, residual, normed = states
        wide = self.mlp(normed if self.mlp_norm is None else self.mlp_norm(residual))
        return self.add(wide, self.attention.output(mixed)), residual


class SequentialBlock:
    """Attention, then the MLP, each with a norm before it."""

    def __init__(self, build: Build, config: DecoderConfig, number: int, tables: RotaryTable) -> None:
        prefix = f"transformer.h.{number}"
        self.attention_norm = AddLayerNorm(build, f"{prefix}.input_layernorm", config.hidden, config.eps)
        self.attention = _attention(build, config, number, tables)
        self.mlp_norm = AddLayerNorm(build, f"{prefix}.post_attention_layernorm", config.hidden, config.eps)
        self.mlp = _mlp(build, config, number)

    def attend(self, x: Tensor, residual: Tensor | None, launch: Launch, caches: Caches) -> tuple[Tensor, ...]:
        normed, residual = self.attention_norm(x, residual)
        return self.attention(normed, residual, launch, caches)

    def transform(self, states: Sequence[Tensor]) -> tuple[Tensor, Tensor | None]:
        mixed, residual = states
        normed, residual = self.mlp_norm(self.attention.output(mixed), residual)
        return self.mlp(normed), residual


def falcon(build: Build, checkpoint: Checkpoint, max_model_len: int) -> Decoder:
    fields = ConfigFields(checkpoint, _FALCON)
    if fields.flag("alibi"):
        raise ModelError("Falcon with alibi is not supported; use a Falcon with rotary embedding (alibi: false).")
    config = _config(fields, max_model_len)
    embedding, head = vocabulary_ends(
        build, "transformer.word_embeddings", config.vocab, config.hidden, tied=config.tied
    )
    tables = RotaryTable(build)
    make = _block(fields)
    blocks = [make(build, config, number, tables) for number in build.layers(len(config.layers))]
    return Decoder(
        build,
        config,
        embedding=embedding,
        blocks=blocks,
        norm=AddLayerNorm(build, "transformer.ln_f", config.hidden, config.eps) if build.is_last_stage else None,
        head=head,
    )


def _config(fields: ConfigFields, max_model_len: int) -> DecoderConfig:
    heads = fields.count("num_attention_heads")
    kv_heads = fields.count("num_kv_heads", heads)
    if not fields.flag("new_decoder_architecture"):
        kv_heads = 1 if fields.flag("multi_query") else heads
    bias = fields.flag("bias")
    eps = fields.number("layer_norm_epsilon")
    sized = ConfigFields({**fields.values, "num_key_value_heads": kv_heads, "head_dim": None})
    shape = read_attention(sized, max_model_len, eps=eps, bias=bias, output_bias=bias, layout=Grouped())
    return read_decoder(
        fields,
        repeated(fields, shape),
        inner=fields.count("ffn_hidden_size", 4 * shape.hidden),
        activation=fields.activation("activation", "gelu"),
        mlp_bias=bias,
    )


def _block(fields: ConfigFields) -> Callable[[Build, DecoderConfig, int, RotaryTable], Block]:
    new = fields.flag("new_decoder_architecture")
    if not new and not fields.flag("parallel_attn"):
        return SequentialBlock
    two = new and fields.count("num_ln_in_parallel_attn", 2) == 2
    norms = ("ln_attn", "ln_mlp") if two else ("input_layernorm", None)

    def parallel(build: Build, config: DecoderConfig, number: int, tables: RotaryTable) -> Block:
        return ParallelBlock(build, config, number, tables, norms)

    return parallel


def _attention(build: Build, config: DecoderConfig, number: int, tables: RotaryTable) -> AttentionBlock:
    return config.layers[number].block(build, f"transformer.h.{number}.self_attention", None, tables)


def _mlp(build: Build, config: DecoderConfig, number: int) -> MLP:
    prefix = f"transformer.h.{number}.mlp"
    return MLP(
        build,
        f"{prefix}.dense_h_to_4h",
        f"{prefix}.dense_4h_to_h",
        config.hidden,
        config.inner,
        config.activation,
        bias=config.mlp_bias,
    )
