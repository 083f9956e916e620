"""RWKV 4: time mixing, an average that fades by channel, then channel mixing; no attention.

From one group of `rescale_every` layers to the next, transformers halves activations, and so the weights that add to
them. Layer norms undo that, except that their eps is 4 times as much beside what it is added to: here, that alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from tessera.errors import ModelError
from tessera.layers.attention import RotaryTable
from tessera.layers.build import Build
from tessera.layers.norm import AddLayerNorm
from tessera.layers.rwkv import ChannelMixing, TimeMixingShape
from tessera.models.decoder import Decoder, DecoderConfig, DecoderNames
from tessera.models.fields import Checkpoint, ConfigFields
from tessera.models.reading import read_decoder
from tessera.models.sequential import layer_norm_decoder
from tessera.platform.attention import Caches
from tessera.platform.launch import Launch

# transformers' defaults for fields that config.json omits. An explicit null stays null.
_RWKV: dict[str, Any] = {"layer_norm_epsilon": 1e-5, "rescale_every": 6}
_LAST_EPS = 1e-5
"""Of the norm behind the last layer, whatever config.json says."""
_NAMES = DecoderNames(embedding="rwkv.embeddings", layers="rwkv.blocks", norm="rwkv.ln_out", head="head")


class RWKVBlock:
    """x + time mixing(norm(x)), then x + channel mixing(norm(x)). The first one's input is complete on every rank."""

    def __init__(self, build: Build, config: DecoderConfig, number: int, tables: RotaryTable, eps: float) -> None:
        prefix = f"{config.names.layers}.{number}"
        self.time_norm = AddLayerNorm(build, f"{prefix}.ln1", config.hidden, eps, whole=number == 0)
        self.time = config.layers[number].block(build, f"{prefix}.attention", None, tables)
        self.channel_norm = AddLayerNorm(build, f"{prefix}.ln2", config.hidden, eps)
        self.channel = ChannelMixing(build, f"{prefix}.feed_forward", config.hidden, config.inner)

    def attend(self, x: Tensor, residual: Tensor | None, launch: Launch, caches: Caches) -> tuple[Tensor, ...]:
        normed, residual = self.time_norm(x, residual)
        mixed, residual = self.time(normed, residual, launch, caches)
        normed, residual = self.channel_norm(self.time.output(mixed), residual)
        return self.channel.shift(normed, launch, caches), residual

    def transform(self, states: Sequence[Tensor]) -> tuple[Tensor, Tensor | None]:
        shifted, residual = states
        return self.channel(shifted), residual


def rwkv(build: Build, checkpoint: Checkpoint, max_model_len: int) -> Decoder:
    fields = ConfigFields(checkpoint, _RWKV)
    hidden, number = fields.count("hidden_size"), fields.count("num_hidden_layers")
    shape = TimeMixingShape(
        hidden=hidden,
        channels=fields.count("attention_hidden_size", hidden),
        eps=fields.number("layer_norm_epsilon"),
        max_positions=max_model_len,
    )
    inner = fields.count("intermediate_size", 4 * hidden)
    config = read_decoder(fields, [shape] * number, inner=inner, activation="relu2", names=_NAMES)
    every = fields.get("rescale_every")
    if type(every) is not int:
        raise ModelError("rescale_every in config.json is not a whole number.")
    halvings = [layer // every if every > 0 else 0 for layer in range(number + 1)]
    if build.dtype == "float16" and halvings[-1]:
        raise ModelError("RWKV's activations may be out of float16's range; use --dtype bfloat16 or float32.")
    return layer_norm_decoder(
        build,
        config,
        lambda layer, tables: RWKVBlock(build, config, layer, tables, config.eps * 4 ** halvings[layer]),
        embedding_norm=f"{_NAMES.layers}.0.pre_ln",
        last_eps=_LAST_EPS * 4 ** halvings[-1],
    )
