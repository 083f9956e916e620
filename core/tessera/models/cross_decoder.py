"""The decoder of an encoder-decoder: each of its blocks has cross attention over what the encoder made of a request's
sound behind its attention over tokens (arXiv:1706.03762)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from tessera.layers.attention import RotaryTable
from tessera.layers.build import Build
from tessera.layers.cross_attention import CrossAttention, CrossShape
from tessera.layers.embedding import PositionEmbedding
from tessera.layers.norm import AddLayerNorm
from tessera.models.decoder import Decoder, DecoderConfig
from tessera.models.encoder import BlockNames
from tessera.models.sequential import SequentialBlock
from tessera.platform.attention import Caches
from tessera.platform.launch import Launch
from tessera.platform.model import Hidden


class CrossBlock(SequentialBlock):
    """A SequentialBlock with cross attention between its two halves, which has a norm before it too. cross, cross_norm:
    their names in the checkpoint, behind the layer's name."""

    def __init__(
        self,
        build: Build,
        config: DecoderConfig,
        number: int,
        tables: RotaryTable,
        names: BlockNames,
        shape: CrossShape,
        *,
        cross: str,
        cross_norm: str,
    ) -> None:
        super().__init__(build, config, number, tables, names)
        prefix = f"{config.names.layers}.{number}"
        self.cross_norm = AddLayerNorm(build, f"{prefix}.{cross_norm}", config.hidden, config.eps)
        self.cross = CrossAttention(build, f"{prefix}.{cross}", shape)

    def attend(self, x: Tensor, residual: Tensor | None, launch: Launch, caches: Caches) -> tuple[Tensor, ...]:
        mixed, residual = super().attend(x, residual, launch, caches)
        normed, residual = self.cross_norm(self.attention.output(mixed), residual)
        return self.cross(normed, residual, launch, caches)

    def transform(self, states: Sequence[Tensor]) -> tuple[Tensor, Tensor | None]:
        mixed, residual = states
        normed, residual = self.mlp_norm(self.cross.output(mixed), residual)
        return self.mlp(normed), residual


class CrossDecoder(Decoder):
    """positions: learned, added to the embedding of tokens. blocks: CrossBlocks. It is not divided into stages, since
    each would need the encoder; and prefixes are not cached, since the same tokens follow from other sounds."""

    def __init__(
        self,
        build: Build,
        config: DecoderConfig,
        *,
        positions: PositionEmbedding,
        blocks: Sequence[CrossBlock],
        **parts: Any,
    ) -> None:
        super().__init__(build, config, blocks=blocks, **parts)
        self.positions, self.crossed = positions, [block.cross for block in blocks]
        self.facts = replace(self.facts, stage_tensors=0, prefix_cacheable=False)

    def write(self, states: Tensor, launch: Launch, caches: Caches) -> None:
        """Keeps what tokens see of what the encoders made of the rows that begin in a launch: [N, hidden], as
        CrossAttention.write()."""
        for cross in self.crossed:
            cross.write(states, launch, caches)

    def forward(self, x: Tensor, launch: Launch, caches: Caches, residual: Tensor | None = None) -> Hidden:
        return super().forward(x, launch, caches, self.positions(launch.positions))
