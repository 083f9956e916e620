"""The sampling parameters of a request, from its fields."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tessera.config import ModelConfig
from tessera.engine.input_processor import check_logprobs
from tessera.errors import RequestError
from tessera.kv_transfer_params import NAME
from tessera.sampling_params import RequestOutputKind, SamplingParams, StructuredOutputsParams, check_extra_args
from tessera.server.generation.beams import beam_search_method
from tessera.server.generation.fields import GenerationFields
from tessera.server.generation.prepare import GenerationMethod
from tessera.server.served_model import ServedModel
from tessera.server.settings import Limits

_PLAIN = SamplingParams()
# Request fields that SamplingParams has with the same name and meaning, except those that are read on their own.
_SAME_FIELDS = tuple(
    name
    for name in SamplingParams.__struct_fields__
    if name in GenerationFields.__struct_fields__
    and name not in ("max_tokens", "logprobs", "structured_outputs", "truncate_prompt_tokens", "truncation_side")
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
    asked = {name: value for name in _SAME_FIELDS if (value := getattr(request, name)) is not None}
    values: dict[str, Any] = {name: value for name, value in defaults.items() if name in _SAME_FIELDS} | asked
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


def generation_method(
    model: ServedModel, request: GenerationFields, params: SamplingParams, best_of: int | None = None
) -> GenerationMethod:
    """How to answer the request's prompts. best_of: of a completion. Raises RequestError."""
    _check_transfer(model, request, params)
    if request.use_beam_search:
        return beam_search_method(model, request, params, best_of)
    if best_of not in (None, params.n):
        raise RequestError("best_of must equal n unless use_beam_search=true.", param="best_of")
    if request.length_penalty not in (None, 1.0):
        raise RequestError("length_penalty needs use_beam_search=true.", param="length_penalty")
    return GenerationMethod(params.n, model.engine.generate)


def _check_transfer(model: ServedModel, request: GenerationFields, params: SamplingParams) -> None:
    """Raises RequestError."""
    asked = params.kv_transfer_params
    if asked is None:
        return
    problem = None
    if model.engine.config.cache.transfer is None:
        problem = "needs a server with --kv-transfer-config; remove it, or send the request to one."
    elif request.use_beam_search:
        problem = "does not go with use_beam_search; leave out one of them."
    elif asked.do_remote_decode and request.stream:
        problem = "with do_remote_decode needs stream=false: a whole answer says where the cache is."
    if problem is not None:
        raise RequestError(f"{NAME} {problem}", param=NAME)


def check_allowed(raw: bytes, vocab_size: int) -> None:
    """Raises RequestError for too many allowed_token_ids. Counts in the JSON, so that they are never decoded."""
    if raw.count(b",") >= vocab_size:
        raise RequestError(f"allowed_token_ids must have at most {vocab_size} ids.", param="allowed_token_ids")


def check_alternatives(request: GenerationFields, field: str, count: int | None, config: ModelConfig) -> None:
    """Raises RequestError. count: log probabilities per token, as the field has it; -1 is all."""
    if request.logprob_token_ids and count is None:
        raise RequestError("logprob_token_ids needs logprobs.", param="logprob_token_ids")
    if count is None:
        return
    if count < -1:
        raise RequestError(f"{field} must be at least 0, or -1 for all, got {count}.", param=field)
    check_logprobs(field, count, config)


def logprob_alternatives(request: GenerationFields, count: int | None, vocab_size: int) -> int | Sequence[int]:
    """What LogprobWriter takes. count: as of check_alternatives()."""
    if request.logprob_token_ids:
        return tuple(dict.fromkeys(request.logprob_token_ids))
    return vocab_size if count == -1 else count or 0


def check_fields(request: GenerationFields, limits: Limits) -> None:
    """Raises RequestError."""
    if request.n is not None and request.n > limits.n:
        raise RequestError(f"n must be at most {limits.n}, got {request.n}.", param="n")
    if request.prompt_logprobs is not None and request.stream:
        raise RequestError("prompt_logprobs is not supported in a stream: leave out stream.", param="prompt_logprobs")
    if request.stream_options is not None and not request.stream:
        raise RequestError("stream_options needs stream=true.", param="stream_options")
