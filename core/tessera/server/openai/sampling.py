"""The fields of a request that say how its tokens are chosen and whose they are, checked."""

from __future__ import annotations

import re
from collections.abc import Mapping

from tessera.errors import RequestError
from tessera.request import RequestOutputKind, SamplingParams
from tessera.server.openai.protocol import GenerationFields
from tessera.server.settings import Limits

_IDENTIFIER = re.compile(r"[A-Za-z0-9._:\-]+")
_PRIORITIES = range(-(2**31), 2**31)


def sampling_params(
    request: GenerationFields,
    defaults: Mapping[str, float | int],
    *,
    max_tokens: int | None,
    logprobs: int | None,
    detokenize: bool,
) -> SamplingParams:
    """Raises RequestError. defaults: for what the request leaves open."""

    def chosen(name: str, otherwise: float) -> float:
        value = getattr(request, name)
        return value if value is not None else defaults.get(name, otherwise)

    return SamplingParams(
        n=1 if request.n is None else request.n,
        temperature=chosen("temperature", 1.0),
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
    )


def check_common(request: GenerationFields, limits: Limits) -> None:
    """Raises RequestError."""
    if request.stream_options is not None and not request.stream:
        raise RequestError("stream_options needs stream=true.", param="stream_options")
    if request.request_id is not None:
        _check_identifier(request.request_id, limits)


def _check_identifier(request_id: str, limits: Limits) -> None:
    if len(request_id) > limits.request_id_chars or not _IDENTIFIER.fullmatch(request_id):
        most = limits.request_id_chars
        raise RequestError(f"request_id has 1 to {most} characters of A-Z a-z 0-9 . _ : and -.", param="request_id")


def priority_of(request: GenerationFields) -> int:
    """Raises RequestError."""
    priority = request.priority or 0
    if priority not in _PRIORITIES:
        raise RequestError("priority must fit 32 bits.", param="priority")
    return priority


def tenant_of(request: GenerationFields, limits: Limits) -> str:
    """Whose share of the places it takes (--scheduling-policy fair); "" leaves that to its salt. Raises
    RequestError."""
    if request.user is not None and len(request.user) > limits.salt_chars:
        raise RequestError(f"user has at most {limits.salt_chars} characters.", param="user")
    return request.user or ""


def cache_salt_of(request: GenerationFields, limits: Limits) -> str:
    """What keeps its cached prefixes apart from others'; prompt_cache_key is another name. Raises RequestError."""
    name = "cache_salt" if request.cache_salt is not None else "prompt_cache_key"
    salt = getattr(request, name) or ""
    if len(salt) > limits.salt_chars:
        raise RequestError(f"{name} has at most {limits.salt_chars} characters.", param=name)
    return str(salt)
