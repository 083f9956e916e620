"""What a step may hold: the token budget, the resources of platforms and features, and the step under construction."""

from __future__ import annotations

from collections.abc import Sequence
from math import lcm
from typing import Literal

import numpy as np

from tessera.arrays import Array, int32
from tessera.config.engine import SchedulerConfig
from tessera.errors import ConfigError
from tessera.platform.launch import RequestView, Resource, StepRules
from tessera.scheduler.rows import Work

Kind = Literal["mixed", "prefill", "decode"]
LEAST_BEFORE_BORDER = 128
"""Tokens of a prompt for which it is split at a border: what comes behind takes a step of its own."""


class ScheduledStep:
    """A step under construction: which rows compute how many tokens, from which position."""

    def __init__(self, kind: Kind, budget: int, num_groups: int) -> None:
        # What it may hold; a row with one token left is a decode.
        self.kind = kind
        # Tokens left of the budget.
        self.room = budget
        # Rows with more than one token left.
        self.num_prefills = 0
        # There were too few blocks for a running request, so no waiting request may start.
        self.blocks_short = False
        # [groups] int64: blocks that rows wait for until steps in flight retire.
        self.promised = np.zeros(num_groups, dtype=np.int64)
        # It does something that a request waits for, with tokens or without.
        self.prepares = False
        self._parts: list[tuple[Work, Array]] = []

    @property
    def computes(self) -> bool:
        """Whether it computes tokens."""
        return bool(self._parts)

    @property
    def rows(self) -> Array:
        """The rows scheduled so far."""
        return np.concatenate([int32(), *(work.rows for work, _ in self._parts)])

    def allowed(self, work: Work) -> Work:
        """The rows that a step of this kind may hold."""
        if self.kind == "mixed":
            return work
        decodes = work.num_remaining == 1
        return work.where(decodes if self.kind == "decode" else ~decodes)

    def add(self, work: Work, num_tokens: Array) -> None:
        """Schedules the first num_tokens[i] of the tokens that row i of work has left. work may be empty."""
        if not len(num_tokens):
            return
        self._parts.append((work, num_tokens))
        if work.decodes:
            self.room -= len(num_tokens)
        else:
            self.room -= int(num_tokens.sum())
            self.num_prefills += int(np.count_nonzero(work.num_remaining > 1))

    def scheduled(self) -> tuple[Work, Array]:
        """All rows and their num_scheduled_tokens, decodes first."""
        if not self._parts:
            return Work(np.zeros(0, np.intp), int32(), int32()), int32()
        if len(self._parts) == 1:
            work, num_tokens = self._parts[0]
        else:
            parts = [(work.rows, work.starts, work.num_remaining, tokens) for work, tokens in self._parts]
            rows, starts, left, num_tokens = (np.concatenate(part) for part in zip(*parts, strict=True))
            work = Work(rows, starts, left)
        if not self.num_prefills:
            return work, num_tokens
        order = np.argsort(work.num_remaining != 1, kind="stable")
        return Work(work.rows[order], work.starts[order], work.num_remaining[order]), num_tokens[order]


class TokenBudget:
    """Decides how many tokens each row computes in a step."""

    def __init__(self, config: SchedulerConfig, rules: StepRules, *, whole: bool, max_model_len: int) -> None:
        """Raises ConfigError if a prompt could never be scheduled."""
        # Most tokens of a step.
        self.total = config.max_num_batched_tokens
        # Prompts are not split into chunks.
        self.whole = whole
        # Prompts are split only at multiples of this many tokens.
        self.chunk_multiple = rules.chunk_multiple
        # Where it costs little, prompts are split at multiples of this many tokens, since states can be copied there;
        # None if no states are.
        self.border: int | None = None
        # Fewer tokens than these are not computed in a step of their own for it.
        self.least_before_border = LEAST_BEFORE_BORDER
        # Most rows with more than one token left.
        self.max_prefill_rows = self.total if rules.max_prefill_rows is None else rules.max_prefill_rows
        # Most tokens of one request in a step.
        self.max_per_request = min(self.total, rules.max_tokens_per_request or self.total)
        most = f"a step holds {self.max_per_request} tokens of one request; raise --max-num-batched-tokens"
        field = "scheduler.max_num_batched_tokens"
        if whole and self.max_per_request < max_model_len:
            raise ConfigError(
                f"Without chunked prefill, a step must hold a prompt of up to {max_model_len} tokens, but {most} or "
                "lower --max-model-len.",
                param=field,
            )
        if self.max_per_request < self.chunk_multiple:
            raise ConfigError(
                f"Prompts are split only at multiples of {self.chunk_multiple} tokens, but {most}.", param=field
            )

    def split_at(self, unit: int) -> None:
        """States can be copied at multiples of this many tokens."""
        self.border = lcm(unit, self.chunk_multiple)

    def chunk(self, start: int, num_remaining: int, room: int) -> int:
        """How many of the num_remaining tokens from position start on to compute next, at most `room`; 0 if the prompt
        cannot be split there."""
        room = min(room, self.max_per_request)
        if num_remaining <= room:
            return num_remaining if self.whole else self.to_border(start, num_remaining) or num_remaining
        if self.whole:
            return 0
        for multiple in (self.border, self.chunk_multiple):
            end = 0 if multiple is None else (start + room) // multiple * multiple
            if end > start:
                return end - start
        return 0

    def to_border(self, start: int, num_remaining: int) -> int:
        """How many of these tokens come before the last border among them, behind which at least one is left; 0 if
        they are too few, or if states need no borders."""
        if self.border is None:
            return 0
        before = (start + num_remaining - 1) // self.border * self.border - start
        return before if before >= self.least_before_border else 0

    def share(self, work: Work, step: ScheduledStep) -> Array:
        """The number of tokens of each row: one for each decode, and the rest of the room for prompts, in order. Some
        room is reserved for a chunk of the first prompt, so that it makes progress even if many rows decode."""
        left, room = work.num_remaining, step.room
        if work.decodes and len(left) <= room:
            return left
        decodes = left == 1
        prefills = np.flatnonzero(~decodes)[: self.max_prefill_rows - step.num_prefills].tolist()
        reserved = 0
        if prefills:
            first = int(left[prefills[0]])
            reserved = min(first, first if self.whole else self.chunk_multiple)
        tokens = np.zeros(len(left), dtype=np.int32)
        tokens[np.flatnonzero(decodes)[: max(room - reserved, 0)]] = 1
        room -= int(tokens.sum())
        for place in prefills:
            tokens[place] = self.chunk(int(work.starts[place]), int(left[place]), room)
            room -= int(tokens[place])
        return tokens


class Resources:
    """Combines the resources of platforms and features. Rows, tokens and KV blocks are not among them; the scheduler
    counts those itself, in arrays."""

    def __init__(self, resources: Sequence[Resource]) -> None:
        self._of_request = [resource for resource in resources if resource.scope == "request"]
        self._of_step = [resource for resource in resources if resource.scope == "step"]
        self._of_prompt = [resource for resource in resources if resource.scope == "prompt"]

    @property
    def asked_each_step(self) -> bool:
        """Whether running requests must ask too, not only those that start."""
        return bool(self._of_step)

    @property
    def asked_by_prompts(self) -> bool:
        """Whether running requests must ask that compute tokens of their prompts."""
        return bool(self._of_prompt)

    def begin_step(self) -> None:
        for resource in (*self._of_step, *self._of_prompt):
            resource.begin_step()

    def room_to_start(self, request: RequestView, num_tokens: int) -> int:
        """How many of num_tokens tokens a request may start with; 0 if it cannot start now."""
        return _room([*self._of_request, *self._while_running(request)], request, num_tokens)

    def room(self, request: RequestView, num_tokens: int) -> int:
        """How many of num_tokens tokens a running request may compute; may be 0."""
        return _room(self._while_running(request), request, num_tokens)

    def holds(self, request: RequestView) -> bool:
        """Whether there is room for what the request would hold while it runs."""
        return _room(self._of_request, request, 1) > 0

    def reason(self, request: RequestView, num_tokens: int) -> str | None:
        """The resource that has no room for a request, and why; None if all have room."""
        for resource in (*self._of_request, *self._while_running(request)):
            answer = resource.fits(request, num_tokens)
            if isinstance(answer, str) or answer < num_tokens:
                return f"{resource.name}: {answer if isinstance(answer, str) else f'room for {answer} tokens'}"
        return None

    def start(self, request: RequestView, num_tokens: int) -> None:
        for resource in self._of_request:
            resource.take(request, num_tokens)

    def take(self, request: RequestView, num_tokens: int) -> None:
        for resource in self._while_running(request):
            resource.take(request, num_tokens)

    def prepare(self, request: RequestView) -> bool:
        """A request computes nothing in this step: whether the step does what it waits for."""
        prepared = [resource.prepare(request) for resource in self._while_running(request)]
        return any(prepared)

    def _while_running(self, request: RequestView) -> Sequence[Resource]:
        """Those that it takes in each step in which it computes tokens."""
        if self._of_prompt and request.num_computed_tokens < request.num_prompt_tokens:
            return [*self._of_step, *self._of_prompt]
        return self._of_step

    def take_drafts(self, requests: Sequence[RequestView], counts: Array) -> Array:
        """Takes counts[i] more tokens of running requests, or as many as there is room for: how many."""
        taken = np.zeros(len(requests), dtype=np.int32)
        for place in np.flatnonzero(counts).tolist():
            taken[place] = self.room(requests[place], int(counts[place]))
            if taken[place]:
                self.take(requests[place], int(taken[place]))
        return taken

    def release(self, request: RequestView) -> None:
        for resource in self._of_request:
            resource.release(request)


def _room(resources: Sequence[Resource], request: RequestView, num_tokens: int) -> int:
    for resource in resources:
        answer = resource.fits(request, num_tokens)
        if isinstance(answer, str):
            return 0
        num_tokens = min(num_tokens, answer)
    return num_tokens
