"""One replica: core's scheduler and caches, in front of a device that takes its time and computes nothing."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np

from benchmarks.simulation.devices import Device
from benchmarks.simulation.models import ModelCost, StepWork
from tessera.arrays import Array
from tessera.config import SchedulerConfig
from tessera.platform import CacheGroup, CachePlan, StepRules
from tessera.request import Request
from tessera.sampling_params import SamplingParams
from tessera.scheduler import EngineCoreOutputs, FirstComeFirstServed, Scheduler
from tessera.step import SchedulerOutput, StepOutput

BLOCK_SIZE = 16
MEMORY_SHARE = 0.9
"""Of a device's memory, that weights, cache and workspace may take."""
WORKSPACE_BYTES = 2e9
"""Of a step: an assumption for devices whose memory is tens of gigabytes."""


class Clock:
    """The time of a simulation, in seconds."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def cache_tokens(device: Device, model: ModelCost) -> int:
    """Tokens that the KV cache has room for. Raises ValueError if the model does not fit."""
    room = device.memory_bytes * MEMORY_SHARE - model.all_bytes - WORKSPACE_BYTES
    if room <= 0:
        raise ValueError(f"{model.name} does not fit into the memory of {device.name}")
    return int(room / model.kv_bytes)


def cache_plan(num_tokens: int, num_rows: int, max_model_len: int, kv_bytes: int) -> CachePlan:
    """A cache that keeps all tokens of each row."""
    blocks = num_tokens // BLOCK_SIZE + 1
    return CachePlan((CacheGroup((), "paged", BLOCK_SIZE, BLOCK_SIZE * kv_bytes, blocks),), num_rows, max_model_len)


@dataclass(frozen=True)
class ReplicaKind:
    """What all replicas of a fleet have alike."""

    device: Device
    model: ModelCost
    scheduler: SchedulerConfig
    plan: CachePlan
    prefix_caching: bool = True


class Replica:
    """An engine whose steps end when the device says so. What a row draws is what its request's answer is to be, so
    that the next turn of a chat finds it in the cache."""

    def __init__(self, kind: ReplicaKind, clock: Clock, *, slowness: float = 1.0) -> None:
        """slowness: times that the device takes longer than its kind."""
        self._kind, self._clock, self._slowness = kind, clock, slowness
        self.scheduler = Scheduler(
            kind.scheduler,
            kind.plan,
            policy=FirstComeFirstServed(),
            rules=StepRules(),
            resources=(),
            eos_token_ids=(),
            prefix_caching=kind.prefix_caching,
            max_model_len=kind.plan.max_model_len,
            depth=kind.device.depth,
            clock=clock,
        )
        # By key, prompt and answer of the requests that have not ended.
        self._sequences: dict[int, Array] = {}
        # [rows, tokens] int32: of the request in each row.
        self._rows = np.zeros((kind.plan.num_rows, kind.plan.max_model_len), np.int32)
        self._in_flight: deque[SchedulerOutput] = deque()
        self._free_at = 0.0

    @property
    def has_work(self) -> bool:
        return self.scheduler.has_work

    def add(self, key: int, prompt: Array, answer: Array) -> None:
        """Raises QueueFullError and RequestError, as an engine does."""
        params = SamplingParams(max_tokens=len(answer), temperature=0.0, ignore_eos=True)
        self.scheduler.add(Request(key, str(key), prompt, params, len(answer), key, arrival=self._clock.now))
        self._sequences[key] = np.concatenate((prompt, answer))

    def launch(self) -> float | None:
        """Schedules a step, if one may be in flight beside those that are, and says when it will end."""
        step = self.scheduler.schedule()
        if step is None:
            return None
        for opened in step.opened:
            sequence = self._sequences[int(opened.request_id)]
            self._rows[opened.row, : len(sequence)] = sequence
        self._in_flight.append(step)
        took = self._kind.device.seconds(self._kind.model, StepWork.from_step(step)) * self._slowness
        self._free_at = max(self._free_at, self._clock.now) + took
        return self._free_at

    def retire(self) -> EngineCoreOutputs:
        """The oldest step in flight has ended."""
        step = self._in_flight.popleft()
        ends = np.zeros(len(self._rows), np.int32)
        ends[step.rows] = step.starts + step.num_scheduled_tokens
        tokens = self._rows[step.samples, ends[step.samples]]
        outputs = self.scheduler.update(StepOutput(step.step, step.samples, np.ones(len(tokens), np.int32), tokens))
        self.forget(outputs)
        return outputs

    def forget(self, outputs: EngineCoreOutputs) -> None:
        """Of requests that have ended, what was kept for them."""
        for finished in outputs.finished:
            self._sequences.pop(finished.key, None)
