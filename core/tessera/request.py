"""A request and its answer: how to choose tokens and when to stop, the prompt as the engine gets it, the outputs a user
gets.

Names, defaults and checks of SamplingParams and RequestOutput are vLLM's where the same thing exists.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import msgspec

from tessera.arrays import Array
from tessera.errors import RequestError

MAX_N = 128
MAX_STOPS = 64
MAX_STOP_CHARS = 1024
MAX_LOGPROBS = 64
GREEDY_BELOW = 1e-5
LOWEST_TEMPERATURE = 1e-2


class RequestOutputKind(IntEnum):
    """What each RequestOutput of a stream holds."""

    CUMULATIVE = 0
    DELTA = 1
    FINAL_ONLY = 2


class SamplingParams(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """How the tokens of one request are chosen and when it ends.

    n: answers for the prompt, 1 to 128. temperature: 0 is greedy. top_k: 0 or -1 is off. seed: 64 bits; the same seed
    draws the same numbers whatever runs beside it. stop: texts that end the answer; stop_token_ids: tokens that do.
    logprobs: how many alternatives of each token, 0 gives the chosen token's alone, None none. Raises RequestError for
    a value that does not hold.
    """

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop: Sequence[str] | str | None = None
    stop_token_ids: Sequence[int] | None = None
    ignore_eos: bool = False
    max_tokens: int | None = 16
    min_tokens: int = 0
    logprobs: int | None = None
    detokenize: bool = True
    skip_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE

    def __post_init__(self) -> None:
        set_ = msgspec.structs.force_setattr
        stops = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())
        set_(self, "stop", stops)
        set_(self, "stop_token_ids", tuple(self.stop_token_ids or ()))
        if self.seed == -1:
            set_(self, "seed", None)
        if self.top_k == -1:
            set_(self, "top_k", 0)
        self._check()
        if self.temperature < GREEDY_BELOW:
            for name, off in (("temperature", 0.0), ("top_p", 1.0), ("top_k", 0), ("min_p", 0.0)):
                set_(self, name, off)
        elif self.temperature < LOWEST_TEMPERATURE:
            set_(self, "temperature", LOWEST_TEMPERATURE)

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0

    def _check(self) -> None:
        _integer("n", self.n, 1, MAX_N)
        _number("temperature", self.temperature, 0.0, math.inf)
        _number("top_p", self.top_p, 0.0, 1.0, open_low=True)
        _integer("top_k", self.top_k, 0, 2**31 - 1)
        _number("min_p", self.min_p, 0.0, 1.0)
        if self.seed is not None:
            _integer("seed", self.seed, -(2**63), 2**64 - 1)
        if self.max_tokens is not None:
            _integer("max_tokens", self.max_tokens, 1, 2**31 - 1)
        _integer("min_tokens", self.min_tokens, 0, 2**31 - 1)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise RequestError(
                f"min_tokens must be at most max_tokens={self.max_tokens}, got {self.min_tokens}.", param="min_tokens"
            )
        if self.logprobs is not None:
            _integer("logprobs", self.logprobs, 0, MAX_LOGPROBS)
        self._check_stops()
        if self.n > 1 and self.temperature < GREEDY_BELOW:
            raise RequestError(f"n must be 1 when using greedy sampling (temperature 0), got {self.n}.", param="n")

    def _check_stops(self) -> None:
        stops: Sequence[Any] = self.stop or ()  # callers need not be typed
        ids = self.stop_token_ids or ()
        if len(stops) > MAX_STOPS:
            raise RequestError(f"stop takes at most {MAX_STOPS} strings, got {len(stops)}.", param="stop")
        for text in stops:
            if not isinstance(text, str) or not text or len(text) > MAX_STOP_CHARS:
                raise RequestError(f"stop strings must have 1 to {MAX_STOP_CHARS} characters.", param="stop")
        if stops and not self.detokenize:
            raise RequestError("stop strings need detokenize=True.", param="stop")
        if len(ids) > MAX_STOPS:
            raise RequestError(f"stop_token_ids takes at most {MAX_STOPS} ids, got {len(ids)}.", param="stop_token_ids")
        for token in ids:
            _integer("stop_token_ids", token, 0, 2**31 - 1)


def _integer(name: str, value: Any, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise RequestError(f"{name} must be an integer, got {_shown(value)}.", param=name)
    if not low <= value <= high:
        raise RequestError(
            f"{name} must be at least {low}{'' if high >= 2**31 - 1 else f' and at most {high}'}, got {value}.",
            param=name,
        )


def _number(name: str, value: Any, low: float, high: float, *, open_low: bool = False) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise RequestError(f"{name} must be a finite number, got {_shown(value)}.", param=name)
    if value < low or value > high or (open_low and value == low):
        bounds = (
            f"in ({low:g}, {high:g}]"
            if open_low
            else f"at least {low:g}" + ("" if math.isinf(high) else f" and at most {high:g}")
        )
        raise RequestError(f"{name} must be {bounds}, got {value:g}.", param=name)


def _shown(value: Any) -> str:
    return str(value)[:40] if isinstance(value, (int, float, str)) else type(value).__name__


class TensorRef(msgspec.Struct, frozen=True, array_like=True):
    """A tensor that crosses a process: by its bytes, or by the name of shared memory that the front end owns until the
    request ends."""

    hash: bytes
    dtype: str
    shape: tuple[int, ...]
    buffer: bytes | None = None
    shared_memory: str | None = None


class EncoderItem(msgspec.Struct, frozen=True, array_like=True):
    """An input of another modality: where its tokens stand in the prompt, and its tensors."""

    modality: str
    offset: int
    num_tokens: int
    tensors: dict[str, TensorRef]


class Request(msgspec.Struct, frozen=True, array_like=True):
    """One prompt and one answer as the engine gets it; n > 1 is n Requests with one `leader`.

    key: the front end's number of it, never used twice by one front end. prompt: int32 token ids. max_tokens: already
    bounded by the context. salt: isolates its cached prefixes from other tenants. leader: key of the sibling whose
    prompt blocks it shares; -1 none. columns: values of features' row columns. adapter, encoder: empty until their
    features come. tenant: whose request it is, where a policy shares out places.
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
    encoder: tuple[EncoderItem, ...] = ()
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
    """What is known of a request's answers; `outputs` in the order of their index."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool
    num_cached_tokens: int = 0
    metrics: RequestMetrics = field(default_factory=RequestMetrics)
