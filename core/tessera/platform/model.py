"""A model, as those see it who run it: what it keeps, its parts from token ids to logits, and facts about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from tessera.platform.attention import Caches, CacheSpec
from tessera.platform.device import Tensor
from tessera.platform.launch import Launch
from tessera.platform.ops import Packed

if TYPE_CHECKING:
    from tessera.ops.sampling import LogitsSampleSpec, SampleSpec


@dataclass(frozen=True)
class LayerCache:
    """What a layer keeps. layer: its number among all layers that keep something."""

    layer: int
    spec: CacheSpec


@dataclass(frozen=True)
class ModelFacts:
    """What the scheduler and a platform need to know of a model. chunkable: a prompt may be cut anywhere.
    prefix_cacheable: what it keeps of a prefix is addressed by block. unsplittable: prompt spans of encoder items must
    be computed in one piece. notes: choices that were made in building it, a line each."""

    architecture: str
    vocab_size: int
    hidden_size: int
    num_layers: int
    max_positions: int
    dtype: str
    caches: tuple[LayerCache, ...]
    num_parameters: int = 0
    chunkable: bool = True
    prefix_cacheable: bool = True
    tasks: tuple[str, ...] = ("generate",)
    notes: tuple[str, ...] = ()


@dataclass
class Hidden:
    """Of the tokens that a launch gives out. last [S, hidden]: what the head takes, before its norm where the head
    brings it; residual likewise. taps: hidden states of chosen layers."""

    last: Tensor
    residual: Tensor | None = None


class SamplingHead(Protocol):
    """The way from hidden states to logits, for sampling as one composite."""

    def sampling_spec(self, sample: SampleSpec) -> LogitsSampleSpec:
        """The spec of the op logits_sample for this head."""

    @property
    def weight(self) -> Packed: ...


class Model(Protocol):
    """Between token ids and logits a model calls only ops, mixers, views and Launch.select_logits()."""

    facts: ModelFacts

    @property
    def head(self) -> SamplingHead: ...

    def embed(self, tokens: Tensor) -> Tensor:
        """[T] -> [T, hidden]."""

    def forward(self, x: Tensor, launch: Launch, caches: Caches) -> Hidden:
        """x [T, hidden] of embed() through all layers, keys and values into caches. Returns the states of the tokens
        that the launch gives out; the last layer need not compute others beyond their keys and values."""

    def finish(self, hidden: Hidden) -> Tensor:
        """Hidden states of forward(), normed: [S, hidden]."""

    def logits(self, rows: Tensor) -> Tensor:
        """[S, hidden] -> [S, vocabulary], of the model's dtype."""
