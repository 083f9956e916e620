"""Pools the hidden states of rows whose requests want numbers of their prompt instead of a completion.

A prompt may come in several launches, beside rows that sample; what they have in common is one state per row, to which
each of them adds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from tessera.arrays import Array, ranges
from tessera.config.pooler import PoolerConfig
from tessera.errors import ModelError, printable
from tessera.platform.device import Device, Future
from tessera.platform.launch import ALL_POSITIONS
from tessera.platform.model import Model, PoolingHead
from tessera.runner.input_batch import CoreInputBatch
from tessera.runner.launch_builder import PreparedLaunch
from tessera.step import RowPooled

WEIGHTS: Mapping[str, Callable[[Array, Array], Array]] = MappingProxyType(
    {
        "cls": lambda place, _: np.where(place == 0, 1.0, 0.0),
        "mean": lambda _, number: 1.0 / number,
        "mean_sqrt_len": lambda _, number: 1.0 / np.sqrt(number),
        "weighted_mean": lambda place, number: (place + 1.0) / (number * (number + 1.0) / 2.0),
    }
)
"""The weight of each state in their sum, by Pooling: of its place among the pooled tokens of its text, and how many
these are (sentence-transformers, models/Pooling.py)."""


class Piece(NamedTuple):
    """Some of the values of a copy to the host."""

    copy: Future[Any]
    part: int | slice


@dataclass(frozen=True)
class PooledRow:
    """The future of a row's numbers. pieces: of a text its vector; of tokens, those of each launch that computed some
    of them."""

    row: int
    pieces: Sequence[Piece]

    def done(self) -> bool:
        return all(piece.copy.done() for piece in self.pieces)

    def result(self) -> RowPooled:
        values = [piece.copy.result()[piece.part] for piece in self.pieces]
        whole = values[0] if len(values) == 1 else np.concatenate(values)
        return RowPooled(self.row, np.ascontiguousarray(whole, np.float32))


@dataclass(frozen=True)
class _Texts:
    """Rows of a launch that have one task."""

    # [n]: in the batch.
    rows: Array
    # [n]: their places among the rows of the launch.
    places: Array
    # [n]: the place of the first of its tokens in the launch.
    first: Array
    # [n]: the position of the first one.
    starts: Array
    # [n]: how many tokens the launch computes.
    lengths: Array
    # [n]: whether the prompt ends with them.
    ends: Array
    # [n]: the position of the first token that is pooled.
    pooled_from: Array
    # [n]: tokens of the prompt.
    totals: Array


class Pooler:
    """heads: of the model, by task."""

    def __init__(self, heads: Mapping[str, PoolingHead], batch: CoreInputBatch, device: Device) -> None:
        self.heads, self.batch, self.device = heads, batch, device
        # What launches so far made of prompts that go on: [rows, width] float32, by task.
        self._sums: dict[str, Tensor] = {}
        # The same for tasks of tokens, by row.
        self._pieces: dict[int, list[Piece]] = {}

    def __call__(self, hidden: Tensor, prepared: PreparedLaunch) -> Iterator[PooledRow]:
        """Pools the rows of a launch that pool. hidden: what Model.finish() returned for it."""
        tasks = np.array([self.batch.pooling[row].task for row in prepared.rows[prepared.pooled].tolist()])
        for task in dict.fromkeys(tasks.tolist()):
            texts = self._texts(prepared, prepared.pooled[tasks == task])
            pool = {"last": self._last, "all": self._each}.get(self.heads[task].pooling, self._reduced)
            yield from pool(task, hidden, prepared, texts)

    def _texts(self, prepared: PreparedLaunch, places: Array) -> _Texts:
        rows, starts = prepared.rows[places], prepared.starts[places]
        lengths = prepared.launch.query_lens_host[places]
        totals = self.batch.sampling.num_prompt_tokens[rows]
        return _Texts(
            rows=rows,
            places=places,
            first=prepared.first[places],
            starts=starts,
            lengths=lengths,
            ends=starts + lengths == totals,
            pooled_from=np.array([self.batch.pooling[row].start for row in rows.tolist()]),
            totals=totals,
        )

    def _last(self, task: str, hidden: Tensor, prepared: PreparedLaunch, texts: _Texts) -> Iterator[PooledRow]:
        """Of the states that become logits, if tokens are sampled."""
        if not texts.ends.any():
            return
        verifies = prepared.drafts is not None  # where each token has one
        at = texts.first + texts.lengths - 1 if verifies else texts.places
        states = self.heads[task].each(self._select(hidden, at[texts.ends]))
        yield from self._numbers(task, states.float(), texts.rows[texts.ends])

    def _each(self, task: str, hidden: Tensor, prepared: PreparedLaunch, texts: _Texts) -> Iterator[PooledRow]:
        """Of every token."""
        head, (at, owner, _) = self.heads[task], _pooled_tokens(texts)
        values = head(head.each(self._select(hidden, _behind_samples(prepared, at))).float())
        copy, counts = self.device.to_host(values), np.bincount(owner, minlength=len(texts.rows))
        for row, start, end, count, last in zip(
            texts.rows.tolist(), texts.starts.tolist(), texts.ends.tolist(), counts, np.cumsum(counts), strict=True
        ):
            earlier = self._pieces.pop(row, [])
            pieces = earlier if start else []  # of an aborted request that had the row
            pieces.append(Piece(copy, slice(last - count, last)))
            if end:
                yield PooledRow(row, pieces)
            else:
                self._pieces[row] = pieces

    def _reduced(self, task: str, hidden: Tensor, prepared: PreparedLaunch, texts: _Texts) -> Iterator[PooledRow]:
        """Of several states, which are added with a weight each, or of which the largest elements are taken."""
        pooling, at = self.heads[task].pooling, texts.rows
        tokens, owner, place = _pooled_tokens(texts, only_first=pooling == "cls")
        if not len(tokens) and task not in self._sums:
            return
        if len(tokens):
            states = self.heads[task].each(self._view(hidden, _behind_samples(prepared, tokens))).float()
            owners = self.device.to_device(owner.astype(np.int64))
            if pooling == "max":
                pooled = _largest(states, owners, len(at))
            else:
                number = (texts.totals - texts.pooled_from)[owner]
                weights = self.device.to_device(WEIGHTS[pooling](place, number).astype(np.float32))
                pooled = _sums(states, owners, weights, len(at))
        else:
            pooled = self._sums[task].new_zeros(len(at), self._sums[task].shape[1])
        if (texts.starts > texts.pooled_from).any() or not texts.ends.all():
            pooled = self._added(task, pooled, texts)
        if texts.ends.any():
            ends = slice(None) if texts.ends.all() else self.device.to_device(np.flatnonzero(texts.ends))
            yield from self._numbers(task, pooled[ends], at[texts.ends])

    def _added(self, task: str, pooled: Tensor, texts: _Texts) -> Tensor:
        """What this launch and those before it made of each row, which is kept for the next."""
        if task not in self._sums:
            self._sums[task] = pooled.new_zeros(len(self.batch.tokens), pooled.shape[1])
        sums, rows = self._sums[task], self.device.to_device(texts.rows.astype(np.int64))
        began = self.device.to_device(texts.starts > texts.pooled_from)[:, None]
        if self.heads[task].pooling == "max":
            pooled = torch.where(began, torch.maximum(pooled, sums[rows]), pooled)
        else:
            pooled = torch.where(began, pooled + sums[rows], pooled)
        sums.index_put_((rows,), pooled)
        return pooled

    def _numbers(self, task: str, pooled: Tensor, rows: Array) -> Iterator[PooledRow]:
        copy = self.device.to_host(self.heads[task](pooled))
        for number, row in enumerate(rows.tolist()):
            yield PooledRow(row, [Piece(copy, number)])

    def _select(self, hidden: Tensor, at: Array) -> Tensor:
        return hidden[self.device.to_device(at.astype(np.int64))]

    def _view(self, hidden: Tensor, at: Array) -> Tensor:
        """The same, for what is read before the next launch, which may overwrite it. at: in ascending order."""
        if at[-1] - at[0] == len(at) - 1:
            return hidden[int(at[0]) : int(at[-1]) + 1]
        return self._select(hidden, at)


def refuse_tasks(model: Model, pooler: PoolerConfig | None) -> None:
    """Raises ModelError if the model's files ask for a head that its class does not have."""
    missing = [] if pooler is None else [task for task in pooler.tasks if task not in model.pooling]
    if missing:
        architecture = printable(model.facts.architecture, 60)
        raise ModelError(f"{architecture} is not served for the task {missing[0]} in the way that its files ask for.")


def _behind_samples(prepared: PreparedLaunch, tokens: Array) -> Array:
    """The places of tokens of a launch among its hidden states."""
    assert ALL_POSITIONS in prepared.launch.key.bits, "the states of all tokens were not asked for"
    return tokens + prepared.launch.key.num_samples


def _pooled_tokens(texts: _Texts, *, only_first: bool = False) -> tuple[Array, Array, Array]:
    """The tokens of a launch that are pooled: their places in it, which of the texts each belongs to, and its place
    among the pooled tokens of that."""
    tokens, owner = ranges(texts.first, texts.lengths), np.repeat(np.arange(len(texts.rows)), texts.lengths)
    place = ranges(texts.starts, texts.lengths) - texts.pooled_from[owner]
    pooled = place == 0 if only_first else place >= 0
    return tokens[pooled], owner[pooled], place[pooled]


def _sums(states: Tensor, owners: Tensor, weights: Tensor, number: int) -> Tensor:
    """states [T, width], owners, weights [T] -> [number, width]. A product, because it adds in the same order each
    time."""
    of_each = torch.arange(number, device=states.device)[:, None] == owners[None, :]
    return (of_each * weights[None, :]) @ states


def _largest(states: Tensor, owners: Tensor, number: int) -> Tensor:
    least = states.new_full((number, states.shape[1]), -torch.inf)
    return least.scatter_reduce_(0, owners[:, None].expand_as(states), states, "amax")
