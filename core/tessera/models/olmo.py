"""OLMo 2: norms after attention and after the MLP but not before, and queries and keys normalized over all heads. OLMo
3 adds windows on three of four layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from tessera.layers.attention import RotaryTable
from tessera.layers.build import Build
from tessera.layers.norm import Norm, NormAdd
from tessera.models.decoder import Decoder, DecoderConfig, build_decoder, mlp_of
from tessera.models.fields import Checkpoint, ConfigFields
from tessera.models.reading import (
    FULL,
    SLIDING,
    by_kind,
    layer_kinds,
    read_attention,
    read_biases,
    read_decoder,
    read_ropes,
    repeated,
    windowed,
)
from tessera.platform.attention import Caches
from tessera.platform.launch import Launch

# transformers' defaults for fields that config.json omits. An explicit null stays null.
_OLMO2 = {"rms_norm_eps": 1e-5, "max_position_embeddings": 2048}
_OLMO3 = {**_OLMO2, "sliding_window": 4096, "rope_theta": 500000.0}


class PostNormBlock:
    """Norms after attention and the MLP only. The whole sum is passed from block to block. first: the name of the norm
    after attention."""

    def __init__(
        self,
        build: Build,
        config: DecoderConfig,
        number: int,
        tables: RotaryTable,
        first: str = "post_attention_layernorm",
    ) -> None:
        prefix, norm = f"model.layers.{number}", Norm(config.eps)
        self.attention = config.layers[number].block(build, f"{prefix}.self_attn", None, tables)
        self.after_attention = NormAdd(build, f"{prefix}.{first}", config.hidden, norm)
        self.mlp = mlp_of(build, config, number)
        self.after_mlp = NormAdd(build, f"{prefix}.post_feedforward_layernorm", config.hidden, norm)

    def attend(self, x: Tensor, residual: Tensor | None, launch: Launch, caches: Caches) -> tuple[Tensor, ...]:
        return self.attention(x, None, launch, caches)

    def transform(self, states: Sequence[Tensor]) -> tuple[Tensor, Tensor | None]:
        mixed, x = states
        x = self.after_attention(self.attention.output(mixed), x)
        return self.after_mlp(self.mlp(x), x), None


def olmo2(build: Build, checkpoint: Checkpoint, max_model_len: int) -> Decoder:
    fields = ConfigFields(checkpoint, _OLMO2)
    shape = read_attention(fields, max_model_len, whole_norm=True, **read_biases(fields))
    return build_decoder(build, read_decoder(fields, repeated(fields, shape)), PostNormBlock, whole=True)


def olmo3(build: Build, checkpoint: Checkpoint, max_model_len: int) -> Decoder:
    fields = ConfigFields(checkpoint, _OLMO3)
    number, theta = fields.count("num_hidden_layers"), fields.positive("rope_theta")
    kinds = layer_kinds(fields, [SLIDING if (layer + 1) % 4 else FULL for layer in range(number)])
    ropes = read_ropes(fields, max_model_len, theta, theta)
    shape = read_attention(fields, max_model_len, rope=ropes[FULL], whole_norm=True, **read_biases(fields))
    windows = windowed(shape, by_kind(fields, kinds))
    layers = [replace(layer, rope=ropes[kind]) for layer, kind in zip(windows, kinds, strict=True)]
    return build_decoder(build, read_decoder(fields, layers), PostNormBlock, whole=True)
