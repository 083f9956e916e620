"""A request as the engine receives it, and the outputs a user receives, with vLLM's names where it has the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from tessera.arrays import Array
from tessera.sampling_params import SamplingParams


class Request(msgspec.Struct, frozen=True, array_like=True):
    """One prompt and one completion, as the engine receives them. n > 1 is n Requests with one `leader`.

    key: the front end's number for it, never reused. prompt: int32 token ids. max_tokens: already limited by the
    context length. salt: keeps its cached prefixes apart from other tenants'. leader: key of the sibling whose prompt
    blocks it shares, or -1. columns: values for the columns of features. tenant: the owner, for a scheduling policy
    that divides capacity between tenants.
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


class Logprob(msgspec.Struct, frozen=True, gc=False):
    """A token's natural-log probability, its rank in the vocabulary (1 is the most likely) and its text. There are
    millions of them in a large answer, so the garbage collector need not visit them."""

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


@dataclass
class CompletionOutput:
    """One completion. finish_reason: None while it is running, then "stop", "length" or "abort". stop_reason: the stop
    string or token id that ended it. logprobs: one entry per token, the token itself first; a list from LLM, otherwise
    a sequence whose entries are made when they are asked for."""

    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None = None
    logprobs: Sequence[Mapping[int, Logprob]] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None


@dataclass
class RequestMetrics:
    """Times in seconds on the clock of time.monotonic(); 0 for an event that has not happened."""

    arrival: float = 0.0
    first_scheduled: float = 0.0
    first_token: float = 0.0
    last_token: float = 0.0


@dataclass
class RequestOutput:
    """The state of a request's completions; `outputs` are in order of index. prompt_logprobs: one entry per prompt
    token, None for the first, as a list from LLM; with DELTA outputs, only in the first one."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool
    num_cached_tokens: int = 0
    metrics: RequestMetrics = field(default_factory=RequestMetrics)
    prompt_logprobs: Sequence[Mapping[int, Logprob] | None] | None = None
