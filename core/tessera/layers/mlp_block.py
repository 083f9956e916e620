"""A layer that is an MLP alone: what other layers are where they mix tokens, without anything that is mixed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from tessera.layers.attention import RotaryTable
from tessera.layers.build import Build
from tessera.layers.mlp import MLP
from tessera.layers.norm import AddNorm, Norm
from tessera.layers.rotary import Rope
from tessera.platform.attention import Caches
from tessera.platform.launch import Launch


@dataclass(frozen=True)
class MLPShape:
    """A BlockShape: one MLP of a model, over all ranks."""

    hidden: int
    inner: int
    activation: str
    bias: bool
    eps: float
    max_positions: int
    norm_offset: float = 0.0
    name: ClassVar[str] = "mlp"
    causal: ClassVar[bool] = True
    rope: ClassVar[Rope | None] = None

    def block(self, build: Build, prefix: str, norm: tuple[str, Norm] | None, tables: RotaryTable) -> MLPBlock:
        """As in BlockShape; there is a norm."""
        assert norm is not None
        return MLPBlock(build, prefix, *norm, self)


class MLPBlock:
    """An AttentionBlock: the norm, which each token has alone, and as its output the MLP."""

    def __init__(self, build: Build, prefix: str, norm_name: str, norm: Norm, shape: MLPShape) -> None:
        self.norm = AddNorm(build, norm_name, shape.hidden, norm)
        up, down = (f"{prefix}.{name}_proj" for name in ("up", "down"))
        self.output = MLP(build, up, down, shape.hidden, shape.inner, shape.activation, bias=shape.bias)

    def __call__(self, x: Tensor, residual: Tensor | None, launch: Launch, caches: Caches) -> tuple[Tensor, Tensor]:
        return self.norm(x, residual)
