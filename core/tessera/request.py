"""A request as the engine gets it, and the outputs a user gets, which have vLLM's names where it has the same thing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from tessera.arrays import Array
from tessera.sampling_params import SamplingParams


class Request(msgspec.Struct, frozen=True, array_like=True):
    """One prompt and one answer as the engine gets it; n > 1 is n Requests with one `leader`.

    key: the front end's number of it, never used twice by one front end. prompt: int32 token ids. max_tokens: already
    bounded by the context. salt: isolates its cached prefixes from other tenants. leader: key of the sibling whose
    prompt blocks it shares; -1: none. columns: values of features' columns. tenant: whose request it is, where a policy
    shares the machine out.
    """

    key: int
    request_id: str
    prompt: Array
    params: SamplingParams
    max_tokens: int
    seed: int
    arrival: float = 0.0
    priority: int = 0
    salt: str = ""
    leader: int = -1
    adapter: str = ""
    columns: dict[str, float] = {}
    tenant: str = ""


@dataclass(frozen=True)
class Logprob:
    """Of one token: natural-log probability, rank in the vocabulary (1 the most likely), its text."""

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


@dataclass
class CompletionOutput:
    """One answer. finish_reason: None while it grows, "stop", "length" or "abort"; stop_reason: the stop string or
    token id that ended it."""

    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None = None
    logprobs: list[Mapping[int, Logprob]] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None


@dataclass
class RequestMetrics:
    """Seconds on the clock of time.monotonic(); 0 where it has not happened."""

    arrival: float = 0.0
    first_scheduled: float = 0.0
    first_token: float = 0.0
    last_token: float = 0.0


@dataclass
class RequestOutput:
    """What is known of a request's answers; `outputs` in the order of their index. prompt_logprobs: an entry a token of
    the prompt, None for the first; with the first output only where each holds what is new."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool
    num_cached_tokens: int = 0
    metrics: RequestMetrics = field(default_factory=RequestMetrics)
    prompt_logprobs: list[Mapping[int, Logprob] | None] | None = None
