"""The results of a step for the front end: new tokens by request, requests that started and finished, and counters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import msgspec
import numpy as np

from tessera.arrays import Array, int32
from tessera.platform.feature import FailureReason
from tessera.step import PromptLogprobs, RowLogprobs

FinishReason = Literal["stop", "length", "abort", "error"]


class FinishedRequest(msgspec.Struct, frozen=True, array_like=True):
    """A request that finished. stop_token: which of its stop_token_ids ended it; None if the model's own end-of-text
    token did. message: the error message if reason is "error". param: the field at fault if the request itself caused
    the error, "" if it is no single field; None if the engine caused it. complete: no token may follow, so the last one
    is part of the completion although the reason is "stop". failure: why the request's features or fields let it not go
    on, if they caused the error."""

    key: int
    reason: FinishReason
    stop_token: int | None = None
    message: str | None = None
    param: str | None = None
    complete: bool = False
    failure: FailureReason | None = None


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


class EngineCoreOutputs(msgspec.Struct, array_like=True):
    """keys [requests] int64: requests that got tokens. counts [requests] int32: how many each got. tokens [sum of
    counts] int32: the tokens, in the order of keys. The token that ends a completion is included."""

    keys: Array = msgspec.field(default_factory=lambda: np.empty(0, dtype=np.int64))
    counts: Array = msgspec.field(default_factory=int32)
    tokens: Array = msgspec.field(default_factory=int32)
    finished: list[FinishedRequest] = []
    logprobs: list[RequestLogprobs] = []
    started: list[StartedRequest] = []
    prompt_logprobs: list[RequestPromptLogprobs] = []


@dataclass
class SchedulerCounters:
    """Totals since the engine started; they never decrease.

    requests: requests that started. prompt_tokens: tokens of their prompts. prefix_queries_tokens,
    cached_prompt_tokens: prompt tokens looked up in the prefix cache, and those found. forked_tokens: prompt tokens
    shared with a sibling. generation_tokens: tokens generated. recomputed_tokens: computed tokens that preemptions
    discarded. drafts: how often a row had draft tokens in a step. draft_tokens, accepted_tokens: draft tokens
    verified, and those accepted.
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
    drafts: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0
