"""The block with norms before and after both of its halves, as in Gemma 2."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from tessera.layers.attention import RotaryTable
from tessera.layers.build import Build
from tessera.layers.norm import AddNorm, Norm, NormAdd
from tessera.models.decoder import DecoderConfig, mlp_of
from tessera.platform.attention import Caches
from tessera.platform.launch import Launch


class SandwichBlock:
    """Norms before and after attention and the MLP. The whole sum is passed from block to block."""

    def __init__(self, build: Build, config: DecoderConfig, number: int, tables: RotaryTable) -> None:
        names, hidden, shape = config.names, config.hidden, config.layers[number]
        prefix, norm = f"{names.layers}.{number}", Norm(config.eps, config.norm_offset, whole=True)
        named_norm = f"{prefix}.{names.attention_norm}", norm
        self.attention = shape.block(build, f"{prefix}.{names.mixer or shape.name}", named_norm, tables)
        self.mlp = mlp_of(build, config, number)
        self.after_attention = NormAdd(build, f"{prefix}.{names.after_attention}", hidden, norm)
        self.before_mlp = AddNorm(build, f"{prefix}.{names.mlp_norm}", hidden, norm, emit=self.mlp.wants)
        self.after_mlp = NormAdd(build, f"{prefix}.{names.after_mlp}", hidden, norm)

    def attend(self, x: Tensor, residual: Tensor | None, launch: Launch, caches: Caches) -> tuple[Tensor, ...]:
        return self.attention(x, None, launch, caches)

    def transform(self, states: Sequence[Tensor]) -> tuple[Tensor, Tensor | None]:
        mixed, x = states
        x = self.after_attention(self.attention.output(mixed), x)
        normed, _ = self.before_mlp(x, None)
        return self.after_mlp(self.mlp(normed), x), None
