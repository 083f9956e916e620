"""The fields of a request that say how its tokens are chosen and whose they are, checked."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from starlette.types import Scope

from tessera.config import ModelConfig
from tessera.engine.admission import check_logprobs
from tessera.errors import RequestError
from tessera.sampling_params import RequestOutputKind, SamplingParams, check_extra_args
from tessera.server.key_tenants import key_tenant
from tessera.server.openai.protocol import GenerationFields
from tessera.server.settings import Limits

_IDENTIFIER = re.compile(r"[A-Za-z0-9._:\-]+")
_PRIORITIES = range(-(2**31), 2**31)


def sampling_params(
    request: GenerationFields,
    defaults: Mapping[str, float],
    *,
    max_tokens: int | None,
    logprobs: int | None,
    detokenize: bool,
    prompt_logprobs: int | None = None,
) -> SamplingParams:
    """Raises RequestError. defaults: for what the request leaves open. prompt_logprobs: where the request does not
    say."""

    def chosen(name: str, otherwise: float) -> float:
        value = getattr(request, name)
        return value if value is not None else defaults.get(name, otherwise)

    return SamplingParams(
        n=1 if request.n is None else request.n,
        # Beams are not drawn, so that they may be many at any temperature.
        temperature=(request.temperature or 1.0) if request.use_beam_search else chosen("temperature", 1.0),
        top_p=chosen("top_p", 1.0),
        top_k=int(chosen("top_k", 0)),
        min_p=chosen("min_p", 0.0),
        seed=request.seed,
        stop=request.stop,
        stop_token_ids=request.stop_token_ids,
        ignore_eos=bool(request.ignore_eos),
        max_tokens=max_tokens,
        min_tokens=request.min_tokens or 0,
        logprobs=logprobs,
        detokenize=detokenize,
        skip_special_tokens=request.skip_special_tokens is not False,
        include_stop_str_in_output=bool(request.include_stop_str_in_output),
        output_kind=RequestOutputKind.DELTA if request.stream else RequestOutputKind.FINAL_ONLY,
        presence_penalty=request.presence_penalty or 0.0,
        frequency_penalty=request.frequency_penalty or 0.0,
        repetition_penalty=chosen("repetition_penalty", 1.0),
        prompt_logprobs=prompt_logprobs if request.prompt_logprobs is None else request.prompt_logprobs,
        logit_bias=cast(Any, request.logit_bias or None),  # its keys become numbers there
        allowed_token_ids=request.allowed_token_ids,
        bad_words=request.bad_words,
        spaces_between_special_tokens=request.spaces_between_special_tokens is not False,
        stream_interval=request.stream_interval,
        extra_args=_extra_args(request),
    )


def _extra_args(request: GenerationFields) -> dict[str, Any] | None:
    """vllm_xargs, which SamplingParams calls extra_args."""
    if request.vllm_xargs:
        check_extra_args("vllm_xargs", request.vllm_xargs)
    return request.vllm_xargs or None


def check_allowed(raw: bytes, vocab_size: int) -> None:
    """Raises RequestError. Counts allowed_token_ids in the undecoded JSON, so that nothing is built of too many."""
    if raw.count(b",") >= vocab_size:
        raise RequestError(f"allowed_token_ids takes at most {vocab_size} ids.", param="allowed_token_ids")


def check_alternatives(name: str, asked: int | None, model: ModelConfig) -> None:
    """Raises RequestError. asked: log probabilities of a token; -1 are all there are."""
    if asked is None:
        return
    if asked < -1:
        raise RequestError(f"{name} must be at least 0, or -1 for all, got {asked}.", param=name)
    check_logprobs(name, asked, model)


def shown_alternatives(asked: int | None, vocab_size: int) -> int:
    return vocab_size if asked == -1 else asked or 0


def check_common(request: GenerationFields, limits: Limits) -> None:
    """Raises RequestError."""
    if request.prompt_logprobs is not None and request.stream:
        raise RequestError("prompt_logprobs is not given in a stream: leave out stream.", param="prompt_logprobs")
    if request.stream_options is not None and not request.stream:
        raise RequestError("stream_options needs stream=true.", param="stream_options")
    if request.request_id is not None:
        _check_identifier(request.request_id, limits)


def _check_identifier(request_id: str, limits: Limits) -> None:
    if len(request_id) > limits.request_id_chars or not _IDENTIFIER.fullmatch(request_id):
        most = limits.request_id_chars
        raise RequestError(f"request_id has 1 to {most} characters of A-Z a-z 0-9 . _ : and -.", param="request_id")


@dataclass(frozen=True)
class Owner:
    """Whose a request is, and how urgent: what AsyncEngine.generate calls by these names."""

    priority: int
    cache_salt: str
    tenant: str


def owner_of(request: GenerationFields, limits: Limits, scope: Scope) -> Owner:
    """Raises RequestError."""
    return Owner(_priority(request), _cache_salt(request, limits), _tenant(request, limits, scope))


def _priority(request: GenerationFields) -> int:
    priority = request.priority or 0
    if priority not in _PRIORITIES:
        raise RequestError("priority must fit 32 bits.", param="priority")
    return priority


def _tenant(request: GenerationFields, limits: Limits, scope: Scope) -> str:
    """Whose share of the places it takes (--scheduling-policy fair): nothing a client says of itself gets it out of its
    key's. Empty leaves that to its salt."""
    if request.user is not None and len(request.user) > limits.salt_chars:
        raise RequestError(f"user has at most {limits.salt_chars} characters.", param="user")
    return key_tenant(scope) or request.user or ""


def _cache_salt(request: GenerationFields, limits: Limits) -> str:
    """What keeps its cached prefixes apart from others'; prompt_cache_key is another name."""
    name = "cache_salt" if request.cache_salt is not None else "prompt_cache_key"
    salt = getattr(request, name) or ""
    if len(salt) > limits.salt_chars:
        raise RequestError(f"{name} has at most {limits.salt_chars} characters.", param=name)
    return str(salt)
