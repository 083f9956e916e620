"""Drafts by a layer of the model that predicts further tokens (multi-token prediction).

The layer sees the state of each token together with the token after it, and predicts the one after that. So it computes
all tokens of a step once the step has sampled, in launches like those of the model, with keys and values of its own in
the cache: prompts too, since what it predicts depends on all tokens before. A token whose row goes on from a rejected
draft is computed again in the next step, which writes over what the layer had of it.

Each draft after the first is one more run over one token of each row: the newest draft, with the layer's own result in
place of the model's state. What such a run writes into the cache is written over by the next step too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from tessera.arrays import Array, int32
from tessera.layers.build import TokenPredictor
from tessera.ops import SampleSpec, SamplingRows
from tessera.platform.attention import AttentionGroup, Caches, MixerBackend
from tessera.platform.device import Device
from tessera.platform.launch import Launch
from tessera.platform.model import Model
from tessera.platform.ops import BoundOps
from tessera.runner.input_batch import SAMPLING_DTYPES
from tessera.runner.input_layout import fill_up
from tessera.runner.launch_builder import LaunchBuilder, PreparedLaunch
from tessera.runner.pending_step import PendingDrafts, SampledRows
from tessera.step import SchedulerOutput


@dataclass(frozen=True)
class Newest:
    """The rows of a launch that have sampled."""

    # [n] int32
    rows: Array
    # [n] int32: the position of each row's newest token
    positions: Array
    # [n] int32: the place in the launch of the token before that one
    at: Array

    def where(self, chosen: Array) -> Newest:
        return Newest(self.rows[chosen], self.positions[chosen], self.at[chosen])


class Drafter:
    """Makes drafts with a model's predictor. groups: those of all layers (runner/attention.py). Each run has the shapes
    of its launch, padding included."""

    def __init__(
        self,
        model: Model,
        predictor: TokenPredictor,
        ops: BoundOps,
        builder: LaunchBuilder,
        caches: Caches,
        groups: Sequence[tuple[MixerBackend[Any], AttentionGroup]],
        device: Device,
        num_rows: int,
    ) -> None:
        """num_rows: the most of a launch."""
        self.model, self.predictor, self.builder, self.caches, self.device = model, predictor, builder, caches, device
        # The layers of the predictor in each group that has any.
        self.layers = [
            (backend, group, sorted(set(group.layers) & set(predictor.layers)))
            for backend, group in groups
            if set(group.layers) & set(predictor.layers)
        ]
        self.numbers = sorted({group.number for _, group, _ in self.layers})
        head = model.head.sampling_spec(SampleSpec(model.facts.vocab_size, greedy=True))
        self.sample = ops.bind("logits_sample", head)
        # Sampling parameters of rows that take the most likely token.
        self.greedy = SamplingRows(
            *(
                device.to_device(np.zeros((num_rows, 2) if name == "seed" else num_rows, SAMPLING_DTYPES[name]))
                for name in SamplingRows._fields
            )
        )

    def __call__(
        self,
        step: SchedulerOutput,
        results: Sequence[tuple[PreparedLaunch, Tensor]],
        sampled: Sequence[SampledRows | None],
    ) -> list[PendingDrafts]:
        """Of each launch of a step whose tokens are sampled and stored. sampled: of each, None if it samples none."""
        launches = self.builder.build(step, ahead=1)
        return [
            self._of_launch(ahead.launch, _states(prepared, hidden), _newest(prepared, rows), step.num_drafts)
            for (prepared, hidden), rows, ahead in zip(results, sampled, launches, strict=True)
        ]

    def _of_launch(self, launch: Launch, hidden: Tensor, newest: Newest, number: int) -> PendingDrafts:
        """number: of drafts of a row."""
        states, size = self._attend(launch, hidden), launch.key.rows
        rows, pending = np.arange(len(newest.rows)), PendingDrafts(len(newest.rows), number, [])
        while len(rows) and len(pending.runs) < number:
            at = self.device.to_device(fill_up(newest.at, size, 0))
            likely, hidden = self.predictor.transform([state.index_select(0, at) for state in states])
            drafts, hidden = self._most_likely(likely)[: len(rows)], hidden[: len(rows)]
            pending.runs.append((rows, self.device.to_host(drafts)))
            kept = np.flatnonzero(self._has_room(newest))
            if len(pending.runs) == number or not len(kept):
                break
            if len(kept) < len(rows):
                chosen, rows, newest = self.device.to_device(int32(kept)), rows[kept], newest.where(kept)
                drafts, hidden = drafts.index_select(0, chosen), hidden.index_select(0, chosen)
            self.builder.store(newest.rows, newest.positions + 1, drafts)
            states = self._one_more(newest, hidden)
            size = len(states[0])
            newest = Newest(newest.rows, newest.positions + 1, np.arange(len(rows), dtype=np.int32))
        return pending

    def _attend(self, launch: Launch, hidden: Tensor) -> Sequence[Tensor]:
        plans: list[Any] = [None] * (1 + max(self.predictor.layers))
        for backend, group, layers in self.layers:
            plan = backend.plan(launch, group, None)
            for layer in layers:
                plans[layer] = plan
        launch.plans = plans
        return self.predictor.attend(self.model.embed(launch.tokens), hidden, launch, self.caches)

    def _one_more(self, newest: Newest, hidden: Tensor) -> Sequence[Tensor]:
        """Computes the newest token of each row, whose state is `hidden`, with the draft behind it. Returns the inputs
        of transform(), of the rows in order, and of padding if that is one launch."""
        ones, parts, first = np.ones(len(newest.rows), np.int32), [], 0
        step = SchedulerOutput(-1, -1, newest.rows, newest.positions, ones, newest.rows, blocks=[])
        for prepared in self.builder.build(step, ahead=1):
            number = len(prepared.rows)
            own = F.pad(hidden[first : first + number], (0, 0, 0, prepared.launch.key.tokens - number))
            parts.append((number, self._attend(prepared.launch, own)))
            first += number
        if len(parts) == 1:
            return parts[0][1]
        own_rows = [[state[:number] for state in states] for number, states in parts]
        return [torch.cat(states) for states in zip(*own_rows, strict=True)]

    def _most_likely(self, likely: Tensor) -> Tensor:
        rows = SamplingRows(*(part[: len(likely)] for part in self.greedy))
        drafts: Tensor = self.sample(likely, self.model.head.weight, rows).tokens
        return drafts

    def _has_room(self, newest: Newest) -> Array:
        """Of each row, whether its blocks and its table of tokens have a place for one more draft."""
        builder = self.builder
        room = newest.positions + 1 < builder.plan.max_model_len
        for number in self.numbers:
            places = np.minimum(newest.positions, builder.plan.max_model_len - 1) // builder.block_sizes[number]
            room &= builder.batch.tables[number][newest.rows, places] != 0
        return room


def _states(prepared: PreparedLaunch, hidden: Tensor) -> Tensor:
    """[T, hidden size]: of all tokens of a launch."""
    key = prepared.launch.key
    return hidden if key.samples_all else hidden[key.num_samples :]


def _newest(prepared: PreparedLaunch, sampled: SampledRows | None) -> Newest:
    """Where drafts were verified, this waits until the host has what was sampled: how many were accepted is not known
    before."""
    if sampled is None:
        return Newest(int32(), int32(), int32())
    if prepared.drafts is None:
        places = np.arange(len(prepared.rows))[prepared.sampling]
        before = prepared.first[places] + prepared.launch.query_lens_host[places] - 1
        return Newest(prepared.rows[places], prepared.next_position[places], int32(before))
    tokens = sampled.tokens()
    places = np.flatnonzero(np.isin(prepared.rows, tokens.rows))
    before = prepared.first[places] + tokens.counts - 1
    return Newest(tokens.rows, int32(prepared.starts[places] + tokens.counts), int32(before))
