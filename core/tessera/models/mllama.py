"""Llama 3.2 Vision (arXiv:2407.21783, section 7): a Llama among whose layers are some with cross attention over a
prompt's images in place of attention over tokens. Each begins as a layer that adds nothing, by gates that are 0."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from tessera.config.checkpoint import ONLY_IN_PROMPTS
from tessera.errors import ModelError
from tessera.layers.attention import RotaryTable
from tessera.layers.build import Build
from tessera.layers.cross_attention import CrossAttention, CrossShape
from tessera.layers.norm import AddNorm, Norm
from tessera.layers.qkv import APART
from tessera.layers.weights import Parameter
from tessera.models.cross_decoder import CrossDecoder
from tessera.models.decoder import Block, Decoder, DecoderConfig, PreNormBlock, build_decoder, mlp_of
from tessera.models.fields import Checkpoint, ConfigFields
from tessera.models.reading import read_attention, read_decoder, repeated
from tessera.platform.attention import NUM_SOURCES, Caches
from tessera.platform.launch import Launch
from tessera.platform.ops import Packed
from tessera.platform.quantization import Part

IMAGE_SHOWN = "image_shown"
"""The column: for each token of a launch, 1 if it comes behind an image, which its row's range then is of; 0 for one
that comes before all of its prompt's images, which sees all of them and computes no MLP."""
IMAGES = "images"
"""The bit of launches with a row that has images. Others leave out the layers with cross attention."""
# transformers' defaults for fields that config.json omits. An explicit null stays null.
_DEFAULTS: Mapping[str, Any] = {
    "vocab_size": 128256,
    "hidden_size": 4096,
    "num_hidden_layers": 40,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "rope_theta": 5e5,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 131072,
}
_CROSSED = (3, 8, 13, 18, 23, 28, 33, 38)


def mllama(build: Build, checkpoint: Checkpoint, max_model_len: int) -> Decoder:
    """Without images, as one whose prompts have none, it has no layers for them."""
    fields = ConfigFields(checkpoint, _DEFAULTS)
    images = build.most_sources > 0
    shape, crossed = read_attention(fields, max_model_len), _crossed(fields, images=images)
    more = ONLY_IN_PROMPTS["MllamaForCausalLM"]
    whole = read_decoder(
        fields, repeated(fields, shape), vocab=fields.count("vocab_size") + more, unwritten=more, tied=False
    )
    numbers = [number for number in range(len(whole.layers)) if images or number not in crossed]
    norm = Norm(shape.eps)
    over_images = CrossShape(
        shape.hidden,
        shape.heads,
        shape.head_dim,
        build.most_sources,
        layout=APART,
        bias=False,
        kv_heads=shape.kv_heads,
        head_norm=norm,
        ranged=True,
    )

    def block(build: Build, _: DecoderConfig, index: int, tables: RotaryTable) -> Block:
        number = numbers[index]
        if number in crossed:
            return GatedCrossBlock(build, whole, number, over_images)
        return PreNormBlock(build, whole, number, tables)

    config = replace(whole, layers=whole.layers[: len(numbers)])
    return build_decoder(build, config, block, decoder=CrossDecoder if images else Decoder)


def _crossed(fields: ConfigFields, *, images: bool) -> set[int]:
    """The numbers of layers with cross attention. images: whether prompts have some. Raises ModelError."""
    said = fields.numbers("cross_attention_layers") if fields.get("cross_attention_layers") is not None else _CROSSED
    number = fields.count("num_hidden_layers")
    crossed = {*said}.intersection(range(number))
    if len(crossed) == number or (images and not crossed):
        raise ModelError("cross_attention_layers in config.json must name some of the layers, and not all.")
    return crossed


class GatedCrossBlock:
    """Cross attention and an MLP, each with a norm before it and a gate behind it. Tokens of rows without images pass
    as they are."""

    def __init__(self, build: Build, config: DecoderConfig, number: int, shape: CrossShape) -> None:
        prefix, norm = f"{config.names.layers}.{number}", Norm(config.eps)
        self.cross = CrossAttention(build, f"{prefix}.cross_attn", shape)
        self.mlp = mlp_of(build, config, number)
        self.norm = AddNorm(build, f"{prefix}.{config.names.attention_norm}", config.hidden, norm)
        self.mlp_norm = AddNorm(build, f"{prefix}.{config.names.mlp_norm}", config.hidden, norm, emit=self.mlp.wants)
        self.cross_gate, self.mlp_gate = (_gate(build, f"{prefix}.cross_attn_{part}_gate") for part in ("attn", "mlp"))

    def attend(self, x: Tensor, residual: Tensor | None, launch: Launch, caches: Caches) -> tuple[Tensor, ...]:
        if IMAGES not in launch.key.bits:
            return (x,) if residual is None else (x, residual)
        normed, residual = self.norm(x, residual)
        mixed, residual = self.cross(normed, residual, launch, caches)
        return mixed, residual, launch.columns[NUM_SOURCES], launch.columns[IMAGE_SHOWN]

    def transform(self, states: Sequence[Tensor]) -> tuple[Tensor, Tensor | None]:
        if len(states) < 4:
            return states[0], states[1] if len(states) > 1 else None
        mixed, residual, seen, shown = states
        seeing, computing = (seen > 0)[:, None], (shown > 0)[:, None]
        attended = torch.where(seeing, self.cross.output(mixed) * self.cross_gate.tensor, 0.0)
        normed, residual = self.mlp_norm(attended, residual)
        return torch.where(computing, self.mlp(normed) * self.mlp_gate.tensor, 0.0), residual


def _gate(build: Build, name: str) -> Parameter:
    """The hyperbolic tangent of a number [1]."""

    def prepare(raw: dict[str, Tensor], into: Packed | None) -> Packed:
        gate = raw["weight"].tanh()
        if into is None:
            return {"weight": gate}
        into["weight"].copy_(gate)
        return into

    return build.register_parameter(Parameter({"weight": [Part(name, (1,), fill=1.0)]}, prepare))
