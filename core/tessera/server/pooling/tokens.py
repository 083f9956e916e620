"""Makes checked prompts of what a request wants numbers of."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import msgspec

from tessera.engine.input_processor import PooledPrompt
from tessera.errors import RequestError
from tessera.media.item import MAX_INPUT_BYTES, input_bytes
from tessera.media.placed import PlacedMedia
from tessera.pooling_params import PoolingParams
from tessera.server.pooling.inputs import PooledInput
from tessera.server.pooling.mixed import MixedParts, mixed_prompt
from tessera.server.pooling.request import PoolingRequest
from tessera.server.settings import Limits
from tessera.text.workers import TextWorkers
from tessera.text_pair import TextPair, type_columns

_NUMBERED = re.compile(r"prompt(\[(?P<number>\d+)\])?")
_AT_ONCE = 64
"""Inputs that are checked before others may run."""


class TokenizedInput(NamedTuple):
    ids: Sequence[int]
    # How many of them belong to the first text of a pair; None for what is no pair.
    boundary: int | None = None
    # As of PooledInput.
    media: Sequence[PlacedMedia] = ()


async def prepare_inputs(
    request: PoolingRequest, inputs: Sequence[PooledInput], params: PoolingParams, *, add_special_tokens: bool = True
) -> list[PooledPrompt]:
    """Tokenizes the inputs and checks each against every limit, before any of them runs. Raises RequestError, which
    names the input at fault, and TextWorkerError."""
    engine, cut = request.model.engine, request.cut
    check_texts(inputs, request.context.settings.limits)
    tokens = await _tokenize(request, inputs, add_special_tokens=add_special_tokens)
    lengths = await _instruction_lengths(request, inputs)
    if cut.side is not None:
        # For token ids: texts have been cut before anything was put around them.
        params = msgspec.structs.replace(params, truncate_prompt_tokens=cut.max_tokens, truncation_side=cut.side)
    prompts = []
    for index, one in enumerate(inputs):
        if index % _AT_ONCE == _AT_ONCE - 1:
            await asyncio.sleep(0)
        ids, boundary, media = tokens[index]
        with _placed([one]):
            start = lengths.get(one.instruction, 0)
            columns = type_columns(engine.config.model.checkpoint, boundary)
            prompts.append(await engine.prepare_pooled(ids, params, pooled_from=start, columns=columns, media=media))
    return prompts


def check_texts(inputs: Sequence[PooledInput], limits: Limits) -> None:
    """Raises RequestError for a text that is empty or too long, and for pairs that are too long together."""
    pair_chars = 0
    for one in inputs:
        pair = one.value if isinstance(one.value, TextPair) else None
        texts = (one.value,) if isinstance(one.value, str) else pair or ()
        mixed_chars = one.value.num_chars if isinstance(one.value, MixedParts) else 0
        if not all(texts):
            raise RequestError(f"{one.place} is empty: it must have at least one character.", param=one.place)
        if max((mixed_chars, *map(len, texts))) > limits.prompt_chars:
            raise RequestError(f"{one.place} must be at most {limits.prompt_chars} characters long.", param=one.place)
        pair_chars += 0 if pair is None else len(pair.first) + len(pair.second)
    if pair_chars > limits.pair_chars:
        raise RequestError(
            f"All pairs together must be at most {limits.pair_chars} characters long, got {pair_chars}.",
            param=inputs[0].place.partition("[")[0],
        )


async def _tokenize(
    request: PoolingRequest, inputs: Sequence[PooledInput], *, add_special_tokens: bool
) -> Mapping[int, TokenizedInput]:
    """By the number of the input. Raises RequestError, TextWorkerError."""
    tokens: dict[int, TokenizedInput] = {}
    texts: dict[int, str] = {}
    pairs: dict[int, TextPair] = {}
    written: dict[int, PooledInput] = {}
    by_message = request.pooler.message is not None
    for index, one in enumerate(inputs):
        if isinstance(one.value, MixedParts) or (by_message and isinstance(one.value, str)):
            written[index] = one
        elif isinstance(one.value, str):
            texts[index] = one.value
        elif isinstance(one.value, TextPair):
            pairs[index] = one.value
        else:
            tokens[index] = TokenizedInput(one.value, media=one.media)
    how: dict[str, Any] = {
        "max_tokens": request.cut.max_tokens,
        "truncation_side": request.cut.side,
        "numbered": True,
        "owner": request.owner.client,
    }
    with _placed([inputs[index] for index in texts]):
        ids = await _workers(request).encode([*texts.values()], add_special_tokens, **how) if texts else []
    with _placed([inputs[index] for index in pairs]):
        encoded = await _workers(request).encode_pairs([*pairs.values()], add_special_tokens, **how) if pairs else []
    tokens.update(zip(texts, map(TokenizedInput, ids), strict=True))
    tokens.update(zip(pairs, (TokenizedInput(pair.ids, pair.boundary) for pair in encoded), strict=True))
    tokens.update(zip(written, await _written(request, [*written.values()]), strict=True))
    return tokens


async def _written(request: PoolingRequest, inputs: Sequence[PooledInput]) -> list[TokenizedInput]:
    """Of inputs that the chat template writes, one after the other, so that few images are in memory as files. Raises
    RequestError, TextWorkerError, MediaWorkerError."""
    done: list[TokenizedInput] = []
    size = 0
    for place, content, instruction, _ in inputs:
        assert isinstance(content, str | MixedParts)
        prompt = await mixed_prompt(request, place, content, instruction)
        done.append(TokenizedInput(prompt.token_ids, media=prompt.media))
        size += sum(input_bytes(media.inputs) for media in prompt.media)
        if size > MAX_INPUT_BYTES:
            raise RequestError(
                f"The images up to {place} together are larger than a request may be; send fewer or smaller ones.",
                param=place,
            )
    return done


def _workers(request: PoolingRequest) -> TextWorkers:
    """Raises RequestError if there is no tokenizer."""
    if request.model.text is None:
        raise RequestError("This server has no tokenizer: send token ids.", param="prompt")
    return request.model.text


async def _instruction_lengths(request: PoolingRequest, inputs: Sequence[PooledInput]) -> Mapping[str, int]:
    """The tokens of each instruction, where the model leaves them out of what it pools; else none."""
    texts = sorted({one.instruction for one in inputs} - {""})
    if request.pooler.include_prompt or request.pooler.message is not None or not texts:
        return {}
    workers = _workers(request)
    lengths = {}
    for text, ids in zip(texts, await workers.encode(texts, owner=request.owner.client), strict=True):
        while ids and ids[-1] in workers.vocabulary.special_ids:  # which stands behind the whole text
            ids.pop()
        lengths[text] = len(ids)
    return lengths


@contextmanager
def _placed(inputs: Sequence[PooledInput]) -> Iterator[None]:
    """Errors about prompt[number] name that one of the inputs, and those about prompt the only one, or their list."""
    try:
        yield
    except RequestError as error:
        named = _NUMBERED.fullmatch(error.param or "")
        if named is None:
            raise
        place = inputs[int(named["number"] or 0)].place
        if named["number"] is None and len(inputs) > 1:
            place = place.partition("[")[0]
        raise type(error)(f"{place}: {error.message}", param=place, code=error.code) from error
