"""A decoder that says how much the tokens of a text attend to each position of a sound, by which words are timed, as
openai-whisper's timing.py does it (arXiv:2212.04356)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from tessera.config.pooler import ALIGNED
from tessera.layers.build import Build
from tessera.models.cross_decoder import CrossBlock, CrossDecoder
from tessera.models.decoder import DecoderConfig
from tessera.ops.tensors import torch_dtype
from tessera.platform.attention import SOURCES, Caches
from tessera.platform.launch import ALL_POSITIONS, Launch
from tessera.platform.model import Hidden


@dataclass
class Sound:
    """What a row that is aligned hears."""

    # [positions, heads, D] float32: of the heads that follow what is said.
    keys: Tensor
    # How many tokens of the row's prompt are still to come.
    remaining: int


class NotedQuery:
    """A product whose last result is copied. states: it, [T, H D]."""

    def __init__(self, product: Callable[[Tensor], Tensor]) -> None:
        self.product = product
        self.states: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        made = self.product(x)
        self.states = made.clone()
        return made


class AlignedDecoder(CrossDecoder):
    """heads: (layer, head) of cross attention, those that follow what is said, in order."""

    def __init__(
        self,
        build: Build,
        config: DecoderConfig,
        *,
        heads: Sequence[tuple[int, int]],
        blocks: Sequence[CrossBlock],
        **parts: Any,
    ) -> None:
        super().__init__(build, config, blocks=blocks, **parts)
        by_layer: dict[int, list[int]] = {}
        for layer, head in heads:
            by_layer.setdefault(layer, []).append(head)
        # Numbers of layers and, of each, of its heads.
        self.heads_of = dict(sorted(by_layer.items()))
        self.hidden, self.dtype = config.hidden, torch_dtype(build.dtype)
        self.gather = build.group.all_gather  # over the ranks that share the heads
        # By row of the batch.
        self.sounds: dict[int, Sound] = {}
        self.pooling = {**self.pooling, "align": AlignmentHead(self.sounds, config.hidden, self.crossed[0].spec)}
        # [S, heads x D + 1] float32: queries of the launch that ran last, and of each its row; None: no row is aligned.
        self._queries: Tensor | None = None

    def write(self, states: Tensor, launch: Launch, caches: Caches) -> list[Tensor]:
        written = super().write(states, launch, caches)
        wanted = self._lengths(launch)
        if not any(wanted):
            return written
        keys = torch.cat([self._of_heads(written[layer], layer) for layer in self.heads_of], 1)
        first, starts = 0, launch.seq_lens_host - launch.query_lens_host
        for index, length in enumerate(launch.columns[SOURCES][: launch.num_rows].tolist()):
            if length and starts[index] == 0:
                if wanted[index]:
                    self.sounds[int(launch.rows_host[index])] = Sound(keys[first : first + length], wanted[index])
                first += length
        return written

    def forward(self, x: Tensor, launch: Launch, caches: Caches, residual: Tensor | None = None) -> Hidden:
        if not any(self._lengths(launch)):
            return super().forward(x, launch, caches, residual)
        noted = {layer: NotedQuery(self.crossed[layer].query) for layer in self.heads_of}
        for layer, query in noted.items():
            self.crossed[layer].query = query
        try:
            hidden = super().forward(x, launch, caches, residual)
        finally:
            for layer, query in noted.items():
                self.crossed[layer].query = query.product
        heads = [
            self._of_heads(query.states.unflatten(1, (self.crossed[layer].heads, -1)), layer)
            for layer, query in noted.items()
        ]
        queries = torch.cat(heads, 1).flatten(1)
        rows = launch.rows.repeat_interleave(launch.query_lens, output_size=launch.num_tokens)
        behind = len(queries) - launch.num_tokens
        rows = F.pad(rows, (0, behind), value=-1)
        self._queries = launch.select_logits(torch.cat((queries, rows[:, None].float()), 1))
        return hidden

    def finish(self, hidden: Hidden) -> Tensor:
        """With the queries of a launch that has an aligned row behind each token's state."""
        states = super().finish(hidden)
        if self._queries is None:
            return states
        queries, self._queries = self._queries, None
        return torch.cat((states.float(), queries), 1)

    def logits(self, rows: Tensor) -> Tensor:
        return super().logits(rows[:, : self.hidden].to(self.dtype))

    def _lengths(self, launch: Launch) -> list[int]:
        """Of each row, how many tokens its prompt has, if it is aligned; otherwise 0."""
        if ALL_POSITIONS not in launch.key.bits:
            return []
        lengths: list[int] = launch.columns[ALIGNED][: launch.num_rows].tolist()
        return lengths

    def _of_heads(self, x: Tensor, layer: int) -> Tensor:
        """Queries or keys of this rank's heads [n, H, D] -> of the heads that follow what is said [n, h, D] float32."""
        return self.gather(x, 1)[:, self.heads_of[layer]].float()


class AlignmentHead:
    """From queries to how much each token attends to each position of its sound, by heads, as an array that is
    flattened: [n, heads x positions], and nothing where there is no sound."""

    pooling = "all"

    def __init__(self, sounds: dict[int, Sound], hidden: int, spec: Any) -> None:
        self.sounds, self.hidden, self.spec = sounds, hidden, spec

    def each(self, states: Tensor) -> Tensor:
        queries, rows = states[:, self.hidden : -1], states[:, -1].long()
        made = states.new_zeros(len(states), 0)
        for row in dict.fromkeys(rows.tolist() if states.shape[1] > self.hidden else ()):
            sound, own = self.sounds.get(row), rows == row
            if sound is None:
                continue
            asked = queries[own].unflatten(1, (-1, self.spec.head_dim))
            scores = torch.einsum("nhd,khd->nhk", asked, sound.keys) * self.spec.scale
            if not made.shape[1]:
                made = states.new_zeros(len(states), scores.shape[1] * scores.shape[2])
            made[own] = scores.softmax(-1).flatten(1)
            sound.remaining -= len(asked)
            if sound.remaining <= 0:
                del self.sounds[row]
        return made

    def __call__(self, pooled: Tensor) -> Tensor:
        return pooled
