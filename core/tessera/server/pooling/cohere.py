"""POST /v2/embed: Cohere's route for vectors of texts and images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Annotated

import msgspec
import numpy as np
from msgspec import UNSET, UnsetType
from starlette.types import Scope

from tessera.arrays import Array
from tessera.errors import RequestError
from tessera.pooling_params import PoolingParams
from tessera.server.assembly import Large
from tessera.server.context import ServerContext
from tessera.server.decode import RequestDecoder
from tessera.server.generation.chat import ContentPart
from tessera.server.generation.endpoint import GenerationEndpoint
from tessera.server.generation.fields import Priority
from tessera.server.openapi import JsonRoute, field_schema
from tessera.server.pooling.answers import PoolingAnswer, is_large
from tessera.server.pooling.encoding import VectorEncoding
from tessera.server.pooling.fields import Dimensions, InputItem, PoolingFields
from tessera.server.pooling.inputs import DOCUMENT, QUERY, known_instruction, listed_items, with_instruction
from tessera.server.pooling.request import PoolingRequest
from tessera.server.pooling.rerank import CohereMeta, CountedTokens
from tessera.server.pooling.run import PoolingRun
from tessera.server.settings import Limits

TYPES = ("float", "base64", "binary", "ubinary")
"""How vectors may be written; the last two have a bit for each number, that of numbers above 0 set."""
CUTS: Mapping[str, str | None] = MappingProxyType({"NONE": None, "START": "left", "END": "right"})
"""The side from which a text that is too long is cut."""
_FIELDS = ("texts", "images", "inputs")
"""Those that say what to embed, of which a request has one."""
_INSTRUCTIONS: Mapping[str, Sequence[str]] = MappingProxyType(
    {
        "search_query": QUERY,
        "search_document": DOCUMENT,
        "classification": ("classification",),
        "clustering": ("clustering",),
    }
)
"""By input_type, what models call their instructions for it."""


class CohereInput(msgspec.Struct):
    content: list[ContentPart]


class CohereEmbedRequest(msgspec.Struct, kw_only=True):
    """Texts or images to make vectors of. images: their URLs. null is the same as leaving a field out."""

    model: str | None = None
    input_type: Annotated[str, field_schema(enum=[*_INSTRUCTIONS])] | None = None
    texts: Annotated[list[str], field_schema(minItems=1, maxItems=Limits.pooled_inputs)] | None = None
    images: Annotated[list[str], field_schema(minItems=1, maxItems=Limits.pooled_inputs)] | None = None
    inputs: Annotated[list[CohereInput], field_schema(minItems=1, maxItems=Limits.pooled_inputs)] | None = None
    embedding_types: list[Annotated[str, field_schema(enum=[*TYPES])]] | None = None
    output_dimension: Dimensions | None = None
    max_tokens: Annotated[int, field_schema(minimum=1)] | None = None
    truncate: Annotated[str, field_schema(enum=[*CUTS])] | None = None
    priority: Priority | None = None


class CohereEmbeddings(Large, kw_only=True):
    """Of each text, in the types that were asked for. binary: bytes from -128 to 127; ubinary: from 0 to 255."""

    float_: list[list[float]] | UnsetType = msgspec.field(default=UNSET, name="float")
    base64: list[str] | UnsetType = UNSET
    binary: list[list[int]] | UnsetType = UNSET
    ubinary: list[list[int]] | UnsetType = UNSET


class CohereEmbedAnswer(Large, kw_only=True):
    id: str
    embeddings: CohereEmbeddings
    texts: list[str]
    meta: CohereMeta
    response_type: str = "embeddings_by_type"


def route(context: ServerContext) -> JsonRoute:
    limits = context.settings.limits
    large = dict.fromkeys(_FIELDS, limits.body_bytes)
    decoder = RequestDecoder(context, CohereEmbedRequest, {}, large)

    async def read(body: bytes, scope: Scope) -> PoolingAnswer:
        asked = await decoder.decode(body)
        request = PoolingRequest.from_fields(context, _fields(asked), scope, "embd", "embed")
        types = _types(asked)
        name, items = _items(asked)
        instruction = known_instruction(request, _instruction_names(asked.input_type))
        inputs = listed_items(name, items, limits)
        texts = [one.value for one in inputs if isinstance(one.value, str)]
        inputs = with_instruction(request, inputs, instruction)
        run = await PoolingRun.prepare(request, inputs, PoolingParams(request.task, dimensions=asked.output_dimension))
        _check_bits(request, asked.output_dimension, types)
        return PoolingAnswer(partial(_answer, run, texts, types))

    return JsonRoute(
        "/v2/embed",
        GenerationEndpoint(read, context),
        "A vector for each text, by Cohere's API.",
        methods=("POST",),
        body=CohereEmbedRequest,
        answer=CohereEmbedAnswer,
    )


def _fields(request: CohereEmbedRequest) -> PoolingFields:
    """As the other routes call them. Raises RequestError."""
    cut = "END" if request.truncate is None else request.truncate
    if cut not in CUTS:
        raise RequestError(f"truncate must be one of {', '.join(CUTS)}.", param="truncate")
    if request.max_tokens is not None and request.max_tokens < 1:
        raise RequestError(f"max_tokens must be at least 1, got {request.max_tokens}.", param="max_tokens")
    side = CUTS[cut]
    if side is None and request.max_tokens is not None:
        raise RequestError("max_tokens needs truncate START or END.", param="max_tokens")
    most = None if side is None else request.max_tokens or -1
    return PoolingFields(
        model=request.model, priority=request.priority, truncate_prompt_tokens=most, truncation_side=side
    )  # fmt: skip


def _types(request: CohereEmbedRequest) -> Sequence[str]:
    """Raises RequestError."""
    types = request.embedding_types or [TYPES[0]]
    for index, one in enumerate(types):
        if one not in TYPES:
            place = f"embedding_types[{index}]"
            raise RequestError(f"{place} must be one of {', '.join(TYPES)}.", param="embedding_types")
    return types


def _items(request: CohereEmbedRequest) -> tuple[str, Sequence[str | InputItem]]:
    """The name of the field that has them, and texts and images. Raises RequestError."""
    given = {name: said for name in _FIELDS if (said := getattr(request, name))}
    if len(given) != 1:
        raise RequestError("Send one of texts, images and inputs.", param="texts")
    ((name, said),) = given.items()
    if name == "texts":
        return name, said
    if name == "images":
        return name, [InputItem(image=url) for url in said]
    return name, [InputItem(content=one.content) for one in said]


def _instruction_names(input_type: str | None) -> Sequence[str]:
    """Raises RequestError."""
    if input_type is None:
        return ()
    if input_type not in _INSTRUCTIONS:
        raise RequestError(f"input_type must be one of {', '.join(_INSTRUCTIONS)}.", param="input_type")
    return _INSTRUCTIONS[input_type]


def _check_bits(request: PoolingRequest, dimension: int | None, types: Sequence[str]) -> None:
    """Raises RequestError for bits that fill no whole bytes."""
    numbers = dimension or request.pooler.dimensions
    for name in ("binary", "ubinary"):
        if name in types and numbers % 8:
            text = f"{name} needs vectors of a multiple of 8 numbers, these have {numbers}."
            raise RequestError(text, param="embedding_types")


async def _answer(run: PoolingRun, texts: Sequence[str], types: Sequence[str]) -> CohereEmbedAnswer:
    outputs = await run.outputs()

    def write() -> CohereEmbeddings:
        return _embeddings(np.stack(outputs), types)

    assembly, large = run.request.context.assembly, is_large(run.num_numbers)
    return CohereEmbedAnswer(
        id=run.request.identity.id,
        embeddings=await assembly.run(write) if large else write(),
        texts=[*texts],
        meta=CohereMeta(tokens=CountedTokens(run.usage().num_prompt_tokens)),
    )


def _embeddings(vectors: Array, types: Sequence[str]) -> CohereEmbeddings:
    """vectors: [texts, numbers]"""
    found = CohereEmbeddings()
    if "float" in types:
        found.float_ = vectors.tolist()
    if "base64" in types:
        encoding = VectorEncoding("base64", endianness="little")
        found.base64 = [str(encoding.write(vector)) for vector in vectors]
    if "binary" in types or "ubinary" in types:
        packed = np.packbits(vectors > 0, axis=-1)
        if "ubinary" in types:
            found.ubinary = packed.tolist()
        if "binary" in types:
            found.binary = (packed.astype(np.int16) - 128).tolist()
    return found
