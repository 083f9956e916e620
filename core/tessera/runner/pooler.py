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
from tessera.runner.state_sums import at_once, largest, one_by_one, sums, sums_in_order
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
    """heads: of the model, by task. batch_invariant: whether no bit of a text's numbers may depend on what else is in
    its launches, nor on how these split it."""

    def __init__(
        self, heads: Mapping[str, PoolingHead], batch: CoreInputBatch, device: Device, *, batch_invariant: bool
    ) -> None:
        self.heads, self.batch, self.device = heads, batch, device
        self._by_row = one_by_one if batch_invariant else at_once
        self._sum = sums_in_order if batch_invariant else sums
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
        states = self._by_row(self.heads[task].each, self._select(hidden, at[texts.ends]))
        yield from self._numbers(task, states.float(), texts.rows[texts.ends])

    def _each(self, task: str, hidden: Tensor, prepared: PreparedLaunch, texts: _Texts) -> Iterator[PooledRow]:
        """Of every token."""
        head, (at, owner, _) = self.heads[task], _pooled_tokens(texts)
        states = self._by_row(head.each, self._select(hidden, _behind_samples(prepared, at))).float()
        values = self._by_row(head, states)
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
        head, number = self.heads[task], len(texts.rows)
        tokens, owner, place = _pooled_tokens(texts, only_first=head.pooling == "cls")
        earlier = self._earlier(task, texts)
        if len(tokens):
            states = self._by_row(head.each, self._view(hidden, _behind_samples(prepared, tokens))).float()
            if head.pooling == "max":
                pooled = largest(states, self.device.to_device(owner.astype(np.int64)), number)
                pooled = pooled if earlier is None else torch.maximum(pooled, earlier)
            else:
                weights = WEIGHTS[head.pooling](place, (texts.totals - texts.pooled_from)[owner]).astype(np.float32)
                pooled = self._sum(states, owner, self.device.to_device(weights), number, earlier, self.device)
        elif earlier is not None:
            pooled = earlier
        else:
            return
        if not texts.ends.all():
            self._store(task, pooled, texts)
        if texts.ends.any():
            ends = slice(None) if texts.ends.all() else self.device.to_device(np.flatnonzero(texts.ends))
            yield from self._numbers(task, pooled[ends], texts.rows[texts.ends])

    def _earlier(self, task: str, texts: _Texts) -> Tensor | None:
        """[n, width]: what launches before this one made of each row, and what changes nothing for a row that begins;
        None if all begin."""
        began = texts.starts > texts.pooled_from
        if not began.any():
            return None
        sums = self._sums[task][self.device.to_device(texts.rows.astype(np.int64))]
        nothing = -torch.inf if self.heads[task].pooling == "max" else 0.0
        return torch.where(self.device.to_device(began)[:, None], sums, nothing)

    def _store(self, task: str, pooled: Tensor, texts: _Texts) -> None:
        """For the launches to come."""
        if task not in self._sums:
            self._sums[task] = pooled.new_zeros(len(self.batch.tokens), pooled.shape[1])
        self._sums[task].index_put_((self.device.to_device(texts.rows.astype(np.int64)),), pooled)

    def _numbers(self, task: str, pooled: Tensor, rows: Array) -> Iterator[PooledRow]:
        copy = self.device.to_host(self._by_row(self.heads[task], pooled))
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
