"""A pipeline stage: core's model runner for a part of the layers. Hidden states go from each stage to the next one, and
the tokens that the last stage samples go back to the first, which embeds them in a later step.

A worker sends to the worker of another stage that has the same place in its tensor group, so what is sent may be a
partial sum: the next stage reduces it over the same places. Nothing that is sent or received is part of a captured
launch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tessera.layers.build import PIPELINE_GROUP
from tessera.platform.collectives import Transfer
from tessera.platform.launch import Launch
from tessera.platform.platform import Platform
from tessera.platform.runner import CachePlan, Progress
from tessera.runner.inputs import PreparedLaunch
from tessera.runner.kv_canary import CheckedRunner
from tessera.runner.runner import CoreRunner, ExecutedStep, PendingStep
from tessera.runner.services import Services
from tessera.step import SchedulerOutput, StepStats, TokenMasks

_STATES = ("stage_x", "stage_residual")
"""Buffers of the tensors [T, hidden] that the stage before passes, so that a captured launch finds them."""


@dataclass(frozen=True)
class _ComingTokens:
    """What the last stage samples in one launch. tokens [R]: received when the transfer is done."""

    step: int
    prepared: PreparedLaunch
    tokens: Tensor
    transfer: Transfer


class StageRunner(CoreRunner):
    """The first stage embeds, the last one samples; there are at least two."""

    def __init__(self, services: Services, platform: Platform, report: Callable[[Progress], None]) -> None:
        super().__init__(services, platform, report)
        self.pipeline = services.groups[PIPELINE_GROUP]
        self.is_first, self.is_last = self.pipeline.rank == 0, self.pipeline.rank == self.pipeline.size - 1
        self._coming: deque[_ComingTokens] = deque()

    def _bind_sampling(self) -> None:
        if self.is_last:
            super()._bind_sampling()

    def allocate(self, plan: CachePlan) -> None:
        super().allocate(plan)
        facts, tokens = self.model.facts, self.buffers.sizes["tokens"]
        self._states = _STATES[: facts.stage_tensors]
        for name in self._states:
            self.buffers.sizes[name] = tokens * facts.hidden_size
            self.buffers.get(name, (tokens, facts.hidden_size), facts.dtype).zero_()  # warm-up computes with it

    @torch.inference_mode()
    def _run_largest_steps(self) -> None:
        super()._run_largest_steps()
        for coming in self._coming:
            coming.transfer.wait()
        self._coming.clear()

    def _allocate_sampling(self) -> None:
        if self.is_last:
            super()._allocate_sampling()

    def _try_out(self, launch: Launch) -> None:
        if self.is_last:
            super()._try_out(launch)
        else:
            self._replay(launch)

    # ---- hidden states, from stage to stage

    def _forward(self, launch: Launch) -> Any:
        """The tensors that the next stage receives, or what the last one samples from."""
        states = [self.model.embed(launch.tokens)] if self.is_first else self._received(launch)
        hidden = self.model.forward(states[0], launch, self.caches, *states[1:])
        if self.is_last:
            return self.model.finish(hidden)
        return (hidden.last,) if hidden.residual is None else (hidden.last, hidden.residual)

    def _received(self, launch: Launch) -> list[Tensor]:
        shape, dtype = (launch.key.tokens, self.model.facts.hidden_size), self.model.facts.dtype
        return [self.buffers.get(name, shape, dtype) for name in self._states]

    def _run(self, launch: Launch, *, whole: bool) -> Any:
        if not self.is_first:
            for transfer in [self.pipeline.recv(x, self.pipeline.rank - 1) for x in self._received(launch)]:
                transfer.wait()
        if self.is_last:
            return super()._run(launch, whole=whole)
        states = self._replay(launch)
        assert len(states) == len(self._states), "ModelFacts.stage_tensors says how many"
        for x in states:  # clones, since the next replay may write into what this one returned
            self.pipeline.send(x.clone(memory_format=torch.contiguous_format), self.pipeline.rank + 1)
        return None

    # ---- tokens, from the last stage to the first

    def execute(self, step: SchedulerOutput) -> ExecutedStep:
        if self.is_first:
            self._take_tokens(step)
        return super().execute(step)

    def sample(self, pending: ExecutedStep, masks: TokenMasks | None = None) -> PendingStep:
        if self.is_last:
            return super().sample(pending, masks)
        for prepared, _ in pending.results if self.is_first else ():
            if len(prepared.rows[prepared.sampling]):
                tokens = torch.empty(prepared.launch.key.rows, dtype=torch.int32, device=self.device.target)
                transfer = self.pipeline.recv(tokens, self.pipeline.size - 1)
                self._coming.append(_ComingTokens(pending.step.step, prepared, tokens, transfer))
        stats = StepStats(pending.seconds, fallbacks=dict(self.build.ops.fallbacks))
        return PendingStep(pending.step.step, [], [], stats)

    def _feed(self, prepared: PreparedLaunch, launch: Launch, tokens: Tensor) -> None:
        super()._feed(prepared, launch, tokens)
        self.pipeline.send(tokens.to(torch.int32, copy=True), 0)

    @torch.inference_mode()
    def _take_tokens(self, step: SchedulerOutput) -> None:
        """Waits for the tokens that this step embeds. Those of earlier steps in rows that it opens for other requests
        must be there too, lest they come later and overwrite the new ones; since such rows were free, they are."""
        opened = np.array([row.row for row in step.opened], np.int32)
        reopened = [coming.step for coming in self._coming if np.isin(coming.prepared.rows, opened).any()]
        until = max([step.after, *reopened])
        while self._coming and self._coming[0].step <= until:
            coming = self._coming.popleft()
            coming.transfer.wait()
            self.builder.feed(coming.prepared, coming.prepared.launch, coming.tokens)


class CheckedStage(CheckedRunner, StageRunner):
    """A first or last stage; those between know none of the tokens by which the check tells slots apart."""


def core_runner(services: Services, platform: Platform, report: Callable[[Progress], None]) -> CoreRunner:
    """Core's runner of a worker."""
    pipeline, check = services.groups[PIPELINE_GROUP], services.config.cache.check
    if pipeline.size == 1:
        runner = CheckedRunner if check else CoreRunner
    else:
        runner = CheckedStage if check and pipeline.rank in (0, pipeline.size - 1) else StageRunner
    return runner(services, platform, report)
