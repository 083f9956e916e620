"""The block whose attention and MLP are beside each other and take the same input, as in Falcon and Cohere's models."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from tessera.layers.attention import RotaryTable
from tessera.layers.build import Build
from tessera.layers.norm import AddLayerNorm, LayerNorm
from tessera.models.decoder import DecoderConfig
from tessera.ops import AddSpec
from tessera.platform.attention import Caches
from tessera.platform.launch import Launch


class ParallelBlock:
    """x + attention(norm(x)) + mlp(norm(x)), with layer norms. mlp: made of the build, the model's configuration and
    the layer's number. own_norm: the name of the MLP's own norm, behind the layer's; "": there is none. norm_bias:
    whether norms have biases."""

    def __init__(
        self,
        build: Build,
        config: DecoderConfig,
        number: int,
        tables: RotaryTable,
        mlp: Callable[[Build, DecoderConfig, int], Callable[[Tensor], Tensor]],
        *,
        own_norm: str = "",
        norm_bias: bool = True,
    ) -> None:
        prefix, names, shape = f"{config.names.layers}.{number}", config.names, config.layers[number]
        size = config.hidden, config.eps
        self.norm = AddLayerNorm(build, f"{prefix}.{names.attention_norm}", *size, bias=norm_bias)
        self.mlp_norm = LayerNorm(build, f"{prefix}.{own_norm}", *size, bias=norm_bias) if own_norm else None
        self.attention = shape.block(build, f"{prefix}.{names.mixer or shape.name}", None, tables)
        self.mlp = mlp(build, config, number)
        self.add = build.ops.bind("add", AddSpec(config.hidden, build.dtype))

    def attend(self, x: Tensor, residual: Tensor | None, launch: Launch, caches: Caches) -> tuple[Tensor, ...]:
        normed, residual = self.norm(x, residual)
        return *self.attention(normed, residual, launch, caches), normed

    def transform(self, states: Sequence[Tensor]) -> tuple[Tensor, Tensor | None]:
        mixed, residual, normed = states
        wide = self.mlp(normed if self.mlp_norm is None else self.mlp_norm(residual))
        return self.add(wide, self.attention.output(mixed)), residual
