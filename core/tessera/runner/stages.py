"""The links of a pipeline stage. Hidden states go from each stage to the next one, and the tokens that the last stage
samples go back to the first, which embeds them in a later step.

A worker sends to the worker of another stage that has the same place in its tensor group, so what is sent may be a
partial sum: the next stage reduces it over the same places. Nothing that is sent or received is part of a captured
launch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from tessera.platform.collectives import Communicator, Transfer
from tessera.platform.device import Device
from tessera.platform.launch import Launch
from tessera.platform.model import ModelFacts
from tessera.runner.device_buffers import DeviceBuffers
from tessera.runner.launch_builder import LaunchBuilder, PreparedLaunch
from tessera.step import SchedulerOutput

_STATES = ("stage_x", "stage_residual")
"""Buffers of the tensors [T, hidden] that the stage before sends, so that a captured launch finds them."""


@dataclass(frozen=True)
class _ExpectedTokens:
    """What the last stage samples in one launch of an earlier step."""

    step: int
    prepared: PreparedLaunch
    # [R] int32; received when the transfer is done.
    tokens: Tensor
    transfer: Transfer


class StageLinks:
    """What this stage exchanges with the others: the first one embeds, the last one samples. A model in one stage is
    both, and exchanges nothing. pipeline: the workers of all stages at this place of their tensor groups."""

    def __init__(self, pipeline: Communicator) -> None:
        self.pipeline = pipeline
        self.is_first, self.is_last = pipeline.rank == 0, pipeline.rank == pipeline.size - 1
        self._expected: deque[_ExpectedTokens] = deque()

    def allocate(self, facts: ModelFacts, buffers: DeviceBuffers, device: Device) -> None:
        """facts: of the model, as this stage has it."""
        self.facts, self.buffers, self.device = facts, buffers, device
        tokens = buffers.sizes["tokens"]
        for name in self._names:
            buffers.sizes[name] = tokens * facts.hidden_size
            buffers.get(name, (tokens, facts.hidden_size), facts.dtype).zero_()  # warm-up computes with it

    # ---- hidden states, from stage to stage

    @property
    def _names(self) -> Sequence[str]:
        """Of the tensors that the stage before sends; the first stage has none before it."""
        return () if self.is_first else _STATES[: self.facts.stage_tensors]

    def states(self, launch: Launch) -> list[Tensor]:
        """The tensors [T, hidden] that this stage's layers take: x, and the residual if there is one. Not for the
        first stage, which embeds."""
        shape = (launch.key.tokens, self.facts.hidden_size)
        return [self.buffers.get(name, shape, self.facts.dtype) for name in self._names]

    def receive(self, launch: Launch) -> None:
        """Waits for the states of a launch from the stage before, unless this is the first."""
        if self.is_first:
            return
        for transfer in [self.pipeline.recv(state, self.pipeline.rank - 1) for state in self.states(launch)]:
            transfer.wait()

    def send(self, states: Sequence[Tensor]) -> None:
        """Sends what this stage's layers returned to the next one; clones, since the next replay may overwrite it."""
        assert len(states) == self.facts.stage_tensors, "ModelFacts.stage_tensors says how many"
        for state in states:
            self.pipeline.send(state.clone(memory_format=torch.contiguous_format), self.pipeline.rank + 1)

    # ---- tokens, from the last stage to the first

    def send_tokens(self, tokens: Tensor) -> None:
        """Sends the sampled tokens [S] of a launch from the last stage to the first, unless they are the same."""
        if not self.is_first:
            self.pipeline.send(tokens.to(torch.int32, copy=True), 0)

    def expect_tokens(self, step: int, launches: Iterable[PreparedLaunch]) -> None:
        """Starts to receive what the last stage samples in these launches, if this is the first stage."""
        for prepared in launches if self.is_first else ():
            if len(prepared.rows[prepared.sampling]):
                tokens = torch.empty(prepared.launch.key.rows, dtype=torch.int32, device=self.device.target)
                transfer = self.pipeline.recv(tokens, self.pipeline.size - 1)
                self._expected.append(_ExpectedTokens(step, prepared, tokens, transfer))

    def take_tokens(self, step: SchedulerOutput, builder: LaunchBuilder) -> None:
        """Waits for the tokens that this step embeds. Those of earlier steps in rows that it opens for other requests
        must be there too, lest they come later and overwrite the new ones; since such rows were free, they are."""
        if not self._expected:
            return
        opened = np.array([row.row for row in step.opened], np.int32)
        reopened = [expected.step for expected in self._expected if np.isin(expected.prepared.rows, opened).any()]
        until = max([step.after, *reopened])
        while self._expected and self._expected[0].step <= until:
            expected = self._expected.popleft()
            expected.transfer.wait()
            builder.feed(expected.prepared, expected.prepared.launch, expected.tokens)

    def discard_tokens(self) -> None:
        """Waits for all tokens that are still to come, which no step embeds."""
        for expected in self._expected:
            expected.transfer.wait()
        self._expected.clear()
