"""Checks the request fields for sampling, priority and tenant; and runs beam search."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from starlette.types import Scope

from tessera.config import ModelConfig
from tessera.engine.async_engine import AsyncEngine
from tessera.engine.beam_search import BeamSearch, BeamSearchParams, BeamSearchSequence, beam_search, most_beams
from tessera.engine.input_processor import check_logprobs
from tessera.errors import RequestError
from tessera.request import CompletionOutput, RequestOutput
from tessera.sampling_params import RequestOutputKind, SamplingParams, StructuredOutputsParams, check_extra_args
from tessera.server.context import ServerContext
from tessera.server.openai.protocol import GenerationFields
from tessera.server.security import client_of, tenant_of
from tessera.server.settings import Limits
from tessera.text import IncrementalDetokenizer, Vocabulary

_IDENTIFIER = re.compile(r"[A-Za-z0-9._:\-]+")
_PRIORITIES = range(-(2**31), 2**31)
PRIORITY = "tessera.priority"
"""The key under which the ASGI scope of a request holds a priority that goes before the body's."""
_PLAIN = SamplingParams()
# Request fields that SamplingParams has with the same name and meaning, except those that are read on their own.
_AS_THEY_ARE = tuple(
    name
    for name in SamplingParams.__struct_fields__
    if name in GenerationFields.__struct_fields__
    and name not in ("max_tokens", "logprobs", "structured_outputs", "truncate_prompt_tokens", "truncation_side")
)
# Fields that end an answer, change it or change probabilities: beams are ranked by the model's own probabilities.
_NOT_WITH_BEAMS = (
    *("allowed_token_ids", "bad_words", "echo", "frequency_penalty", "logit_bias", "logprob_token_ids", "min_tokens"),
    *(
        "presence_penalty",
        "prompt_logprobs",
        "repetition_penalty",
        "response_format",
        "stop",
        "stop_token_ids",
        "structured_outputs",
    ),
    "vllm_xargs",
)


def sampling_params(
    request: GenerationFields,
    defaults: Mapping[str, float],
    *,
    max_tokens: int | None,
    logprobs: int | None,
    detokenize: bool,
    structured: StructuredOutputsParams | None = None,
    prompt_logprobs: int | None = None,
) -> SamplingParams:
    """defaults: values for fields that the request leaves out. prompt_logprobs: likewise. Raises RequestError."""
    asked = {name: value for name in _AS_THEY_ARE if (value := getattr(request, name)) is not None}
    values: dict[str, Any] = {name: value for name, value in defaults.items() if name in _AS_THEY_ARE} | asked
    if request.use_beam_search:
        values["temperature"] = request.temperature or 1.0  # beams are not sampled, so several may have temperature 0
    if not values.get("logit_bias"):
        values.pop("logit_bias", None)
    return SamplingParams(
        **{"prompt_logprobs": prompt_logprobs, **values, "top_k": int(values.get("top_k", 0))},
        max_tokens=max_tokens,
        logprobs=logprobs,
        detokenize=detokenize,
        output_kind=RequestOutputKind.DELTA if request.stream else RequestOutputKind.FINAL_ONLY,
        extra_args=_extra_args(request),
        structured_outputs=structured,
    )


def _extra_args(request: GenerationFields) -> dict[str, Any] | None:
    """vllm_xargs, which SamplingParams calls extra_args."""
    if request.vllm_xargs:
        check_extra_args("vllm_xargs", request.vllm_xargs)
    return request.vllm_xargs or None


def check_allowed(raw: bytes, vocab_size: int) -> None:
    """Raises RequestError for too many allowed_token_ids. Counts in the JSON, so that they are never decoded."""
    if raw.count(b",") >= vocab_size:
        raise RequestError(f"allowed_token_ids must have at most {vocab_size} ids.", param="allowed_token_ids")


def check_alternatives(request: GenerationFields, name: str, asked: int | None, model: ModelConfig) -> None:
    """Raises RequestError. asked: log probabilities per token; -1 is all."""
    if request.logprob_token_ids and asked is None:
        raise RequestError("logprob_token_ids needs logprobs.", param="logprob_token_ids")
    if asked is None:
        return
    if asked < -1:
        raise RequestError(f"{name} must be at least 0, or -1 for all, got {asked}.", param=name)
    check_logprobs(name, asked, model)


def shown_alternatives(request: GenerationFields, asked: int | None, vocab_size: int) -> int | Sequence[int]:
    """What LogprobWriter takes. asked: how many alternatives."""
    if request.logprob_token_ids:
        return tuple(dict.fromkeys(request.logprob_token_ids))
    return vocab_size if asked == -1 else asked or 0


def check_common(request: GenerationFields, limits: Limits) -> None:
    """Raises RequestError."""
    if request.n is not None and request.n > limits.n:
        raise RequestError(f"n must be at most {limits.n}, got {request.n}.", param="n")
    if request.prompt_logprobs is not None and request.stream:
        raise RequestError("prompt_logprobs is not supported in a stream: leave out stream.", param="prompt_logprobs")
    if request.stream_options is not None and not request.stream:
        raise RequestError("stream_options needs stream=true.", param="stream_options")
    if request.request_id is not None:
        _check_identifier(request.request_id, limits)


def _check_identifier(request_id: str, limits: Limits) -> None:
    if len(request_id) > limits.request_id_chars or not _IDENTIFIER.fullmatch(request_id):
        most = limits.request_id_chars
        raise RequestError(f"request_id must be 1 to {most} characters of A-Z a-z 0-9 . _ : -.", param="request_id")


@dataclass(frozen=True)
class Owner:
    """The arguments of AsyncEngine.generate that say whose request it is, how urgent, and for which adapter."""

    priority: int
    cache_salt: str
    tenant: str
    adapter: str
    client: str

    @property
    def arguments(self) -> dict[str, Any]:
        return vars(self)


def owner_of(context: ServerContext, request: GenerationFields, scope: Scope) -> Owner:
    """Raises RequestError."""
    limits = context.settings.limits
    adapter = context.adapters.get(context.named(request.model), "")
    salt = _cache_salt(request, limits)
    if not context.settings.shared_prefix_cache and (key := tenant_of(scope)):
        salt = f"{key}\n{salt}"  # no tenant has a line break, so no two of these pairs are the same text
    tenant = _tenant(request, limits, scope)
    return Owner(_priority(request, scope), salt, tenant, adapter, client_of(scope))


def _priority(request: GenerationFields, scope: Scope) -> int:
    priority = request.priority or 0
    if priority not in _PRIORITIES:
        raise RequestError("priority must be a 32-bit integer.", param="priority")
    return int(scope.get(PRIORITY, priority))


def _tenant(request: GenerationFields, limits: Limits, scope: Scope) -> str:
    """The tenant for --scheduling-policy fair: that of the API key if it has one, else the request's `user`. If empty,
    the engine uses the cache salt."""
    if request.user is not None and len(request.user) > limits.salt_chars:
        raise RequestError(f"user must be at most {limits.salt_chars} characters long.", param="user")
    return tenant_of(scope) or request.user or ""


def _cache_salt(request: GenerationFields, limits: Limits) -> str:
    """Requests of a tenant share cached prefixes only if they have the same salt. prompt_cache_key is another name for
    it."""
    name = "cache_salt" if request.cache_salt is not None else "prompt_cache_key"
    salt = getattr(request, name) or ""
    if len(salt) > limits.salt_chars:
        raise RequestError(f"{name} must be at most {limits.salt_chars} characters long.", param=name)
    return str(salt)


# ---- beam search -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Way:
    """How prompts are answered. width: sequences per prompt in the engine; generate: has AsyncEngine.generate's
    arguments."""

    width: int
    generate: Callable[..., AsyncGenerator[RequestOutput, None]]


def way_of(
    context: ServerContext, request: GenerationFields, params: SamplingParams, best_of: int | None = None
) -> Way:
    """How to answer the request's prompts: by sampling, or by beam search as in LLM.beam_search, best beam first.
    best_of: the number of beams, of which the best n are returned; None is n. Raises RequestError."""
    if not request.use_beam_search:
        _check_sampling(request, params, best_of)
        return Way(params.n, context.engine.generate)
    _check_searching(request)
    width = params.n if best_of is None else best_of
    most = most_beams(context.engine.config.model, ignore_eos=params.ignore_eos)
    if most < 1:
        raise RequestError("This server's --max-logprobs is too low for beam search.", param="use_beam_search")
    _check_width("n", params.n, 1, most)
    _check_width("best_of", width, params.n, most)
    penalty = 1.0 if request.length_penalty is None else request.length_penalty
    beams = BeamSearchParams(
        beam_width=width,
        max_tokens=1,  # the real one depends on the prompt
        ignore_eos=params.ignore_eos,
        length_penalty=penalty,
        include_stop_str_in_output=True,
    )
    return Way(width, partial(_answers, context.engine, beams))


def _check_sampling(request: GenerationFields, params: SamplingParams, best_of: int | None) -> None:
    if best_of not in (None, params.n):
        raise RequestError("best_of must equal n unless use_beam_search=true.", param="best_of")
    if request.length_penalty not in (None, 1.0):
        raise RequestError("length_penalty needs use_beam_search=true.", param="length_penalty")


def _check_searching(request: GenerationFields) -> None:
    if request.stream:
        raise RequestError("Beam search cannot stream: leave out stream.", param="stream")
    for name in _NOT_WITH_BEAMS:
        if getattr(request, name, None) not in (None, "", [], {}, {"type": "text"}, getattr(_PLAIN, name, False)):
            raise RequestError(f"{name} cannot be combined with use_beam_search: leave out one of them.", param=name)


def _check_width(field: str, width: int, least: int, most: int) -> None:
    if not least <= width <= most:
        raise RequestError(f"With use_beam_search, {field} must be {least} to {most}, got {width}.", param=field)


async def _answers(
    engine: AsyncEngine,
    beams: BeamSearchParams,
    prompt: Sequence[int],
    params: SamplingParams,
    request_id: str,
    **owner: Any,
) -> AsyncGenerator[RequestOutput, None]:
    """Like AsyncEngine.generate, but yields a single output. owner: see Owner.arguments. Closing it ends the search."""
    prepared = await engine.prepare(prompt, params, client=owner["client"])
    search = BeamSearch(
        prompt, beams, engine.config.model.eos_token_ids, prepared.max_tokens, prepared.params.logprobs or 0
    )
    cached = await beam_search(engine, search, request_id, **owner)
    best = search.output(None).sequences[: params.n]
    answers = [_answer(index, beam, prompt, params, engine.tokenizer) for index, beam in enumerate(best)]
    yield RequestOutput(request_id, None, list(prompt), answers, finished=True, num_cached_tokens=cached)


def _answer(
    index: int, beam: BeamSearchSequence, prompt: Sequence[int], params: SamplingParams, tokenizer: Vocabulary | None
) -> CompletionOutput:
    tokens = beam.tokens[len(prompt) :]
    hidden = beam.finish_reason == "stop" and not params.include_stop_str_in_output
    shown = tokens[:-1] if hidden else tokens
    return CompletionOutput(
        index=index,
        text="" if tokenizer is None else _text(tokenizer, prompt, shown, params, cut=beam.finish_reason != "stop"),
        token_ids=tokens,
        cumulative_logprob=beam.cum_logprob,
        logprobs=None if params.logprobs is None else beam.logprobs,
        finish_reason=beam.finish_reason,
        stop_reason=beam.stop_reason,
    )


def _text(
    tokenizer: Vocabulary, prompt: Sequence[int], tokens: Sequence[int], params: SamplingParams, *, cut: bool
) -> str:
    detokenizer = IncrementalDetokenizer(
        tokenizer, prompt, params.skip_special_tokens, params.spaces_between_special_tokens
    )
    return detokenizer.append(tokens) + detokenizer.finish(cut=cut)
