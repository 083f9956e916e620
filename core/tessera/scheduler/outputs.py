"""What came of a step, for whoever gives out the answers: tokens by request, requests that started and finished,
counters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import msgspec
import numpy as np

from tessera.arrays import Array, int32
from tessera.step import PromptLogprobs, RowLogprobs

FinishReason = Literal["stop", "length", "abort", "error"]


class FinishedRequest(msgspec.Struct, frozen=True, array_like=True):
    """A request that finished. stop_token: the one of its stop_token_ids that ended it; None where the model's own end
    of text did. message: of an error. param: of an error that is the request's own fault, the field to blame, "" if it
    is not a single one. complete: no token may follow, so the last one is part of the answer although the reason is
    "stop"."""

    key: int
    reason: FinishReason
    stop_token: int | None = None
    message: str | None = None
    param: str | None = None
    complete: bool = False


class StartedRequest(msgspec.Struct, frozen=True, array_like=True):
    """A request that was scheduled for the first time. num_cached_tokens: prompt tokens that the prefix cache had.
    scheduled_at: seconds on time.monotonic()."""

    key: int
    num_cached_tokens: int
    scheduled_at: float


class RequestLogprobs(msgspec.Struct, frozen=True, array_like=True):
    key: int
    logprobs: RowLogprobs


class RequestPromptLogprobs(msgspec.Struct, frozen=True, array_like=True):
    key: int
    prompt_logprobs: PromptLogprobs


class EngineCoreOutputs(msgspec.Struct, array_like=True):
    """keys [requests] int64: requests that got tokens; counts [requests] int32: how many of tokens [sum of counts]
    int32 each got, in this order. A token that ended an answer is among them, as its last."""

    keys: Array = msgspec.field(default_factory=lambda: np.empty(0, dtype=np.int64))
    counts: Array = msgspec.field(default_factory=int32)
    tokens: Array = msgspec.field(default_factory=int32)
    finished: list[FinishedRequest] = []
    logprobs: list[RequestLogprobs] = []
    started: list[StartedRequest] = []
    prompt_logprobs: list[RequestPromptLogprobs] = []


@dataclass
class SchedulerCounters:
    """Totals since the start; they never fall.

    requests: that started. prompt_tokens: of them. prefix_queries_tokens, cached_prompt_tokens: looked up in the
    prefix cache, and found there. forked_tokens: shared with a sibling. generation_tokens: generated. preemptions;
    recomputed_tokens: tokens computed again because of them. steps.
    """

    requests: int = 0
    prompt_tokens: int = 0
    prefix_queries_tokens: int = 0
    cached_prompt_tokens: int = 0
    forked_tokens: int = 0
    generation_tokens: int = 0
    preemptions: int = 0
    recomputed_tokens: int = 0
    steps: int = 0
