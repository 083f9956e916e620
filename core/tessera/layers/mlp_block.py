"""A layer that is an MLP, or experts, alone: what other layers are where they mix tokens, without anything that is
mixed."""

from __future__ import annotations

from abc import ABC, abstractmethod
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


@dataclass(frozen=True, kw_only=True)
class AloneShape(ABC):
    """A BlockShape: what a block has that mixes no tokens, over all ranks."""

    hidden: int
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
        return MLPBlock(AddNorm(build, norm[0], self.hidden, norm[1]), self.output(build, prefix))

    @abstractmethod
    def output(self, build: Build, prefix: str) -> MLP | MixtureOfExperts:
        """What the block is. prefix: of its weights in the checkpoint."""


@dataclass(frozen=True, kw_only=True)
class MLPShape(AloneShape):
    inner: int
    bias: bool

    def output(self, build: Build, prefix: str) -> MLP:
        up, down = (f"{prefix}.{name}_proj" for name in ("up", "down"))
        return MLP(build, up, down, self.hidden, self.inner, self.activation, bias=self.bias)


@dataclass(frozen=True, kw_only=True)
class ExpertsShape(AloneShape):
    """{layer} in the experts' names stands for the block's own."""

    experts: Experts

    def output(self, build: Build, prefix: str) -> MixtureOfExperts:
        return MixtureOfExperts(build, self.experts, prefix, self.hidden, self.activation)


class MLPBlock:
    """An AttentionBlock: the norm, which each token has alone, and as its output the MLP or the experts."""

    def __init__(self, norm: AddNorm, output: MLP | MixtureOfExperts) -> None:
        self.norm, self.output = norm, output

    def __call__(self, x: Tensor, residual: Tensor | None, launch: Launch, caches: Caches) -> tuple[Tensor, Tensor]:
        return self.norm(x, residual)
