"""A layer that is an MLP, or experts, alone: what other layers are where they mix tokens, without anything that is
mixed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from tessera.layers.attention import RotaryTable
from tessera.layers.build import Build
from tessera.layers.mlp import MLP, Experts, MixtureOfExperts
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
        up, down = (f"{prefix}.{name}_proj" for name in ("up", "down"))
        normed = AddNorm(build, norm[0], self.hidden, norm[1])
        return MLPBlock(normed, MLP(build, up, down, self.hidden, self.inner, self.activation, bias=self.bias))


@dataclass(frozen=True)
class ExpertsShape:
    """A BlockShape: one mixture of experts of a model, over all ranks. {layer} in the experts' names stands for the
    block's own."""

    hidden: int
    experts: Experts
    activation: str
    eps: float
    max_positions: int
    norm_offset: float = 0.0
    name: ClassVar[str] = "mlp"
    causal: ClassVar[bool] = True
    rope: ClassVar[Rope | None] = None

    def block(self, build: Build, prefix: str, norm: tuple[str, Norm] | None, tables: RotaryTable) -> MLPBlock:
        """As in BlockShape; there is a norm."""
        assert norm is not None
        normed = AddNorm(build, norm[0], self.hidden, norm[1])
        return MLPBlock(normed, MixtureOfExperts(build, self.experts, prefix, self.hidden, self.activation))


class MLPBlock:
    """An AttentionBlock: the norm, which each token has alone, and as its output the MLP or the experts."""

    def __init__(self, norm: AddNorm, output: MLP | MixtureOfExperts) -> None:
        self.norm, self.output = norm, output

    def __call__(self, x: Tensor, residual: Tensor | None, launch: Launch, caches: Caches) -> tuple[Tensor, Tensor]:
        return self.norm(x, residual)
