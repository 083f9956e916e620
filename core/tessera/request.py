"""A request and its answer: how to choose tokens and when to stop, the prompt as the engine gets it, the outputs a user
gets.

Names, defaults and checks of SamplingParams and RequestOutput are vLLM's where the same thing exists.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import msgspec

from tessera.arrays import Array
from tessera.sampling_checks import check, effective, normalised


class RequestOutputKind(IntEnum):
    """What each RequestOutput of a stream holds."""

    CUMULATIVE = 0
    DELTA = 1
    FINAL_ONLY = 2


class SamplingParams(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """How the tokens of one request are chosen and when it ends.

    n: answers for the prompt, 1 to 128. temperature: 0 is greedy. top_k: 0 or -1 is off. seed: 64 bits; the same seed
    draws the same numbers whatever runs beside it. stop: texts that end the answer; stop_token_ids: tokens that do;
    min_tokens: before so many none of them is drawn. logprobs: how many alternatives of each token, 0 gives the chosen
    token's alone, -1 the whole vocabulary's, None none; prompt_logprobs: likewise of the prompt's tokens.

    presence_penalty, frequency_penalty: taken off the logits of tokens that the answer has, once and for each time;
    repetition_penalty: divides (multiplies, where negative) those of tokens that prompt or answer have. logit_bias: by
    token id, added, clamped to -100 to 100. allowed_token_ids: no other is drawn. bad_words: texts that the answer
    never completes; bad_words_ids: the same as token ids. stream_interval: new tokens of an answer to wait for before
    it is given out again. extra_args: numbers for the columns of features, by name.

    structured_outputs, thinking_token_budget, repetition_detection are known and not served yet. Raises RequestError
    for a value that does not hold.
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
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    prompt_logprobs: int | None = None
    logit_bias: dict[int, float] | None = None
    allowed_token_ids: Sequence[int] | None = None
    bad_words: Sequence[str] | None = None
    bad_words_ids: Sequence[Sequence[int]] | None = None
    spaces_between_special_tokens: bool = True
    stream_interval: int | None = None
    extra_args: dict[str, Any] | None = None
    structured_outputs: Any = None
    thinking_token_budget: Any = None
    repetition_detection: Any = None

    def __post_init__(self) -> None:
        for name, value in normalised(self).items():
            msgspec.structs.force_setattr(self, name, value)
        check(self)
        for name, value in effective(self).items():
            msgspec.structs.force_setattr(self, name, value)

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0

    @property
    def penalised(self) -> bool:
        return bool(self.presence_penalty or self.frequency_penalty or self.repetition_penalty != 1.0)


class Request(msgspec.Struct, frozen=True, array_like=True):
    """One prompt and one answer as the engine gets it; n > 1 is n Requests with one `leader`.

    key: the front end's number of it, never used twice by one front end. prompt: int32 token ids. max_tokens: already
    bounded by the context. salt: isolates its cached prefixes from other tenants. leader: key of the sibling whose
    prompt blocks it shares; -1 none. columns: values of features' row columns. tenant: whose request
    it is, where a policy shares out places.
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
