"""A request as the engine receives it, and the outputs a user receives, with vLLM's names where it has the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import chain
from types import MappingProxyType

import msgspec

from tessera.arrays import Array
from tessera.kv_transfer_params import KVTransferParams
from tessera.media.placed import PlacedMedia
from tessera.pooling_params import RequestPooling
from tessera.sampling_params import SamplingParams

NO_ARGS: Mapping[str, str] = MappingProxyType({})
"""The feature_args of a request that has none."""


class Request(msgspec.Struct, frozen=True, array_like=True):
    """One prompt and one completion, as the engine receives them. n > 1 is n Requests with one `leader`."""

    # The front end's number for it, never reused.
    key: int
    # The client's, for logs; of several completions, each has its own.
    request_id: str
    # [tokens] int32 token ids.
    prompt: Array
    # Without bad_words, and with the token ids checked.
    params: SamplingParams
    # Of the completion, already limited by the context length.
    max_tokens: int
    # 0 to 2**64 - 1; drawn by the front end if the client sent none.
    seed: int
    # Seconds on time.monotonic().
    arrival: float = 0.0
    # Lower runs first.
    priority: int = 0
    # Requests share cached prefixes only if theirs are equal; see make_cache_key().
    cache_key: bytes = b""
    # Key of the sibling whose prompt blocks it shares, or -1.
    leader: int = -1
    # Values of its own for features that change what is computed, by the feature's name; part of cache_key.
    feature_args: dict[str, str] = {}
    # Values for the columns of features.
    columns: dict[str, float] = {}
    # The owner, for a scheduling policy that divides capacity between tenants.
    tenant: str = ""
    # What is made of the prompt instead of a completion; params, max_tokens and seed then mean nothing.
    pooling: RequestPooling | None = None
    # Images and the like, in order of their places in the prompt.
    media: tuple[PlacedMedia, ...] = ()


def make_cache_key(salt: str, feature_args: Mapping[str, str] = NO_ARGS) -> bytes:
    """The SHA-256 of everything but tokens that keeps the cached prefixes of two requests apart; b"" if there is
    nothing. salt: of the tenant."""
    if not salt and not feature_args:
        return b""
    digest = sha256()
    for text in (salt, *chain.from_iterable(sorted(feature_args.items()))):
        data = text.encode()
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.digest()


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
    # Of a request that pools: as PoolingOutput.data, once it is finished.
    pooled: Array | None = None
    # Where another engine finds the prompt's cache, if the request asked for that, once it is finished.
    kv_transfer_params: KVTransferParams | None = None


@dataclass
class PoolingOutput:
    """data: [numbers] float32, or [tokens, numbers] of a task of tokens, after activation and normalization."""

    data: Array


@dataclass
class PoolingRequestOutput:
    """The answer to a request that pools."""

    request_id: str
    outputs: PoolingOutput
    prompt_token_ids: list[int]
    num_cached_tokens: int = 0
    metrics: RequestMetrics = field(default_factory=RequestMetrics)
    finished: bool = True

    @classmethod
    def from_output(cls, output: RequestOutput) -> PoolingRequestOutput:
        """Of a request that pools and has finished."""
        assert output.pooled is not None, "the request does not pool, or was aborted"
        return cls(
            output.request_id,
            PoolingOutput(output.pooled),
            output.prompt_token_ids,
            output.num_cached_tokens,
            output.metrics,
        )


@dataclass
class EmbeddingOutput:
    """embedding: the vector."""

    embedding: list[float]


@dataclass
class EmbeddingRequestOutput:
    """A PoolingRequestOutput of the task embed."""

    request_id: str
    outputs: EmbeddingOutput
    prompt_token_ids: list[int]
    finished: bool = True

    @classmethod
    def from_pooling(cls, output: PoolingRequestOutput) -> EmbeddingRequestOutput:
        return cls(output.request_id, EmbeddingOutput(output.outputs.data.tolist()), output.prompt_token_ids)


@dataclass
class ClassificationOutput:
    """probs: of each label."""

    probs: list[float]


@dataclass
class ClassificationRequestOutput:
    """A PoolingRequestOutput of the task classify."""

    request_id: str
    outputs: ClassificationOutput
    prompt_token_ids: list[int]
    finished: bool = True

    @classmethod
    def from_pooling(cls, output: PoolingRequestOutput) -> ClassificationRequestOutput:
        return cls(output.request_id, ClassificationOutput(output.outputs.data.tolist()), output.prompt_token_ids)


@dataclass
class ScoringOutput:
    """score: how well two texts belong together."""

    score: float


@dataclass
class ScoringRequestOutput:
    """The score of a pair of texts."""

    request_id: str
    outputs: ScoringOutput
    # Of both texts.
    prompt_token_ids: list[int]
    finished: bool = True
