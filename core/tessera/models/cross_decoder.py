"""The decoder of an encoder-decoder: each of its blocks has cross attention over what the encoder made of a request's
sound or text behind its attention over tokens (arXiv:1706.03762). Or one some of whose blocks have it instead."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

from torch import Tensor

from tessera.layers.attention import RotaryTable
from tessera.layers.build import Build
from tessera.layers.cross_attention import CrossAttention, CrossShape
from tessera.layers.norm import AddLayerNorm
from tessera.models.decoder import Block, Decoder, DecoderConfig
from tessera.models.encoder import BlockNames
from tessera.models.sequential import SequentialBlock
from tessera.ops import AddSpec
from tessera.platform.attention import Caches
from tessera.platform.launch import Launch
from tessera.platform.model import Hidden


@dataclass(frozen=True)
class CrossNames:
    """What a checkpoint calls cross attention and its norm, behind the layer's name."""

    attention: str
    norm: str


class CrossBlock(SequentialBlock):
    """A SequentialBlock with cross attention between its two halves, which has a norm before it too."""

    def __init__(
        self,
        build: Build,
        config: DecoderConfig,
        number: int,
        tables: RotaryTable,
        names: BlockNames,
        shape: CrossShape,
        cross: CrossNames,
        *,
        norm_bias: bool = True,
        **differs: Any,
    ) -> None:
        """differs: as of SequentialBlock."""
        super().__init__(build, config, number, tables, names, norm_bias=norm_bias, **differs)
        prefix = f"{config.names.layers}.{number}"
        self.cross_norm = AddLayerNorm(build, f"{prefix}.{cross.norm}", config.hidden, config.eps, bias=norm_bias)
        self.cross = CrossAttention(build, f"{prefix}.{cross.attention}", shape)

    def attend(self, x: Tensor, residual: Tensor | None, launch: Launch, caches: Caches) -> tuple[Tensor, ...]:
        mixed, residual = super().attend(x, residual, launch, caches)
        normed, residual = self.cross_norm(self.attention.output(mixed), residual)
        return self.cross(normed, residual, launch, caches)

    def transform(self, states: Sequence[Tensor]) -> tuple[Tensor, Tensor | None]:
        mixed, residual = states
        normed, residual = self.mlp_norm(self.cross.output(mixed), residual)
        return self.mlp(normed), residual


class PostNormCrossBlock(CrossBlock):
    """norm(x + attention(x)), then the same with cross attention, then with the MLP. What it takes and returns is
    complete on every rank."""

    def attend(self, x: Tensor, residual: Tensor | None, launch: Launch, caches: Caches) -> tuple[Tensor, ...]:
        mixed, x = self.attention(x, x, launch, caches)
        x, _ = self.attention_norm(self.attention.output(mixed), x)
        return self.cross(x, x, launch, caches)

    def transform(self, states: Sequence[Tensor]) -> tuple[Tensor, Tensor | None]:
        mixed, x = states
        x, _ = self.cross_norm(self.cross.output(mixed), x)
        return self.mlp_norm(self.mlp(x), x)[0], None


@runtime_checkable
class CrossingBlock(Block, Protocol):
    """A block with cross attention."""

    @property
    def cross(self) -> CrossAttention: ...


class CrossDecoder(Decoder):
    """positions: added to the embedding of tokens; None: attention itself knows them. embedding_norm: of the sum,
    if there is one. whole: without one, the sum is complete on every rank, as blocks need that do not begin with a
    norm. It is not divided into stages, since each would need the encoder; and prefixes are not cached, since the same
    tokens follow from other sounds."""

    def __init__(
        self,
        build: Build,
        config: DecoderConfig,
        *,
        blocks: Sequence[Block],
        positions: Callable[[Tensor], Tensor] | None = None,
        embedding_norm: AddLayerNorm | None = None,
        whole: bool = False,
        **parts: Any,
    ) -> None:
        super().__init__(build, config, blocks=blocks, **parts)
        self.positions = positions
        self.crossed = [block.cross for block in blocks if isinstance(block, CrossingBlock)]
        self.embedding_norm = embedding_norm
        self.add = build.ops.bind("add", AddSpec(config.hidden, build.dtype)) if whole else None
        self.facts = replace(self.facts, stage_tensors=0, prefix_cacheable=False)

    def write(self, states: Tensor, launch: Launch, caches: Caches) -> list[Tensor]:
        """Keeps what tokens see of what the encoders made of the rows that begin in a launch: [N, hidden], as
        CrossAttention.write(). Returns the keys of each layer."""
        return [cross.write(states, launch, caches) for cross in self.crossed]

    def forward(self, x: Tensor, launch: Launch, caches: Caches, residual: Tensor | None = None) -> Hidden:
        if self.positions is None:
            return super().forward(x, launch, caches, residual)
        positions = self.positions(launch.positions)
        if self.embedding_norm is not None:
            return super().forward(self.embedding_norm(x, positions)[0], launch, caches)
        if self.add is not None:
            return super().forward(self.add(x, positions), launch, caches)
        return super().forward(x, launch, caches, positions)
