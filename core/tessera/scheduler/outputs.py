"""The results of a step for the front end: new tokens by request, requests that started and finished, and counters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import msgspec
import numpy as np

from tessera.arrays import Array, int32
from tessera.kv_transfer_params import KVTransferParams
from tessera.platform.feature import FailureReason
from tessera.step import PromptLogprobs, RowLogprobs

FinishReason = Literal["stop", "length", "abort", "error"]


class FinishedRequest(msgspec.Struct, frozen=True, array_like=True):
    """A request that finished."""

    key: int
    reason: FinishReason
    # Which of its stop_token_ids ended it; None if the model's own end-of-text token did.
    stop_token: int | None = None
    # The error message if reason is "error".
    message: str | None = None
    # The field at fault if the request itself caused the error, "" if it is no single field; None if the engine did.
    param: str | None = None
    # No token may follow, so the last one is part of the completion although the reason is "stop".
    complete: bool = False
    # Why the request's features or fields do not let it go on, if they caused the error.
    failure: FailureReason | None = None
    # Where its prompt's cache is kept for another engine, if it asked for that.
    kv_transfer_params: KVTransferParams | None = None


class StartedRequest(msgspec.Struct, frozen=True, array_like=True):
    """A request that was scheduled for the first time. num_cached_tokens: prompt tokens that were already computed,
    from the prefix cache or a sibling. scheduled_at: seconds on time.monotonic()."""

    key: int
    num_cached_tokens: int
    scheduled_at: float


class RequestLogprobs(msgspec.Struct, frozen=True, array_like=True):
    key: int
    logprobs: RowLogprobs


class RequestPromptLogprobs(msgspec.Struct, frozen=True, array_like=True):
    key: int
    prompt_logprobs: PromptLogprobs


class RequestPooled(msgspec.Struct, frozen=True, array_like=True):
    """values: of RowPooled."""

    key: int
    values: Array


class EngineCoreOutputs(msgspec.Struct, array_like=True):
    """What a step has changed. The token that ends a completion is among its tokens."""

    # [requests] int64: requests that got tokens.
    keys: Array = msgspec.field(default_factory=lambda: np.empty(0, dtype=np.int64))
    # [requests] int32: how many each got.
    counts: Array = msgspec.field(default_factory=int32)
    # [sum of counts] int32: the tokens, in the order of keys.
    tokens: Array = msgspec.field(default_factory=int32)
    finished: list[FinishedRequest] = []
    logprobs: list[RequestLogprobs] = []
    started: list[StartedRequest] = []
    prompt_logprobs: list[RequestPromptLogprobs] = []
    pooled: list[RequestPooled] = []
    # Keys of requests that gave up their row, once for each time.
    preempted: list[int] = []


@dataclass
class SchedulerCounters:
    """Totals since the engine started; they never decrease."""

    # Requests that started.
    requests: int = 0
    # Tokens of their prompts.
    prompt_tokens: int = 0
    # Prompt tokens looked up in the prefix cache.
    prefix_queries_tokens: int = 0
    # Of these, the ones that the cache had.
    cached_prompt_tokens: int = 0
    # Prompt tokens shared with a sibling.
    forked_tokens: int = 0
    # Tokens generated.
    generation_tokens: int = 0
    preemptions: int = 0
    # Computed tokens that preemptions discarded.
    recomputed_tokens: int = 0
    steps: int = 0
    # How often a row had draft tokens in a step.
    drafts: int = 0
    # Draft tokens verified.
    draft_tokens: int = 0
    # Draft tokens accepted.
    accepted_tokens: int = 0
