"""Answers prompts by beam search, as LLM.beam_search does: best beam first."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from functools import partial
from typing import Any

from tessera.engine.async_engine import AsyncEngine
from tessera.engine.beam_search import (
    BeamSearch,
    BeamSearchParams,
    BeamSearchSequence,
    beam_search,
    check_beams,
    max_beam_width,
)
from tessera.engine.input_processor import Prompt
from tessera.errors import RequestError
from tessera.request import CompletionOutput, RequestOutput
from tessera.sampling_params import SamplingParams
from tessera.server.generation.fields import GenerationFields
from tessera.server.generation.prepare import GenerationMethod
from tessera.server.served_model import ServedModel
from tessera.text import IncrementalDetokenizer, Vocabulary

_PLAIN = SamplingParams()
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


def beam_search_method(
    model: ServedModel, request: GenerationFields, params: SamplingParams, best_of: int | None
) -> GenerationMethod:
    """best_of: the number of beams, of which the best n are returned; None is n. Raises RequestError."""
    _check_searching(request)
    check_beams(model.engine.config.model)
    width = params.n if best_of is None else best_of
    max_width = max_beam_width(model.engine.config.model, ignore_eos=params.ignore_eos)
    if max_width < 1:
        raise RequestError("This server's --max-logprobs is too low for beam search.", param="use_beam_search")
    _check_width("n", params.n, 1, max_width)
    _check_width("best_of", width, params.n, max_width)
    penalty = 1.0 if request.length_penalty is None else request.length_penalty
    beams = BeamSearchParams(
        beam_width=width,
        max_tokens=1,  # the real one depends on the prompt
        ignore_eos=params.ignore_eos,
        length_penalty=penalty,
        include_stop_str_in_output=True,
    )
    return GenerationMethod(width, partial(_answers, model.engine, beams))


def _check_searching(request: GenerationFields) -> None:
    if request.stream:
        raise RequestError("Beam search cannot stream: leave out stream.", param="stream")
    for name in _NOT_WITH_BEAMS:
        if getattr(request, name, None) not in (None, "", [], {}, {"type": "text"}, getattr(_PLAIN, name, False)):
            raise RequestError(f"{name} cannot be combined with use_beam_search: leave out one of them.", param=name)


def _check_width(field: str, width: int, minimum: int, maximum: int) -> None:
    if not minimum <= width <= maximum:
        raise RequestError(f"With use_beam_search, {field} must be {minimum} to {maximum}, got {width}.", param=field)


async def _answers(
    engine: AsyncEngine,
    beams: BeamSearchParams,
    prepared: Prompt,
    params: SamplingParams,
    request_id: str,
    **owner: Any,
) -> AsyncGenerator[RequestOutput, None]:
    """As AsyncEngine.generate, but a single output. owner: RequestOwner.arguments. Closing it ends the search."""
    prompt, logprobs = prepared.decoded.tolist(), prepared.params.logprobs or 0
    eos = engine.config.model.eos_token_ids
    search = BeamSearch(prompt, beams, eos, prepared.max_tokens, logprobs, prepared.media)
    cached = await beam_search(engine, search, request_id, **owner)
    best = search.output(None).sequences[: params.n]
    answers = [_answer(index, beam, prompt, params, engine.tokenizer) for index, beam in enumerate(best)]
    yield RequestOutput(request_id, None, prepared.ids.tolist(), answers, finished=True, num_cached_tokens=cached)


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
