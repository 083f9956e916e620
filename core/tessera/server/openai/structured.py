"""What an answer must look like: the fields response_format and structured_outputs of a request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from tessera.errors import RequestError
from tessera.sampling_params import SamplingParams, StructuredOutputsParams
from tessera.server.context import ServerContext
from tessera.server.openai.protocol import GenerationFields
from tessera.text.grammar import FIELD

_FORMAT = "response_format"
_TYPES = ("text", "json_object", "json_schema", "structural_tag")


class Asked(NamedTuple):
    """place: where in the request the grammar is, for what SamplingParams calls `structured_outputs.{kind}`."""

    params: StructuredOutputsParams | None = None
    place: str = ""

    def named(self, error: RequestError) -> RequestError:
        """An error of the grammar, in terms of the request."""
        if self.params is None or not self.place or error.param is None:
            return error
        own = f"{FIELD}.{self.params.kind}"
        param = error.param.replace(own, self.place, 1)
        return RequestError(error.message.replace(own, self.place, 1), param=param, code=error.code)


def structured_outputs(request: GenerationFields) -> Asked:
    """Raises RequestError."""
    given = request.response_format
    if given is None or given.get("type") == "text":
        return Asked() if request.structured_outputs is None else Asked(_params(request.structured_outputs))
    if request.structured_outputs is not None:
        raise RequestError(f"{_FORMAT} and {FIELD} cannot be combined: leave out one of them.", param=_FORMAT)
    return _of_format(given)


def _of_format(given: Mapping[str, Any]) -> Asked:
    match given.get("type"):
        case "json_object":
            schema = given.get("schema")
            if schema is None:
                return Asked(StructuredOutputsParams(json_object=True), f"{_FORMAT}.type")
            return _made("json", schema, f"{_FORMAT}.schema")
        case "json_schema":
            return _of_schema(given.get("json_schema"))
        case "structural_tag":
            return _made("structural_tag", dict(given), _FORMAT)
    raise RequestError(f"{_FORMAT}.type must be one of {', '.join(_TYPES)}.", param=f"{_FORMAT}.type")


def _of_schema(given: Any) -> Asked:
    place = f"{_FORMAT}.json_schema"
    if not isinstance(given, Mapping):
        raise RequestError(f"{place} must be an object with a name and a schema.", param=place)
    schema = given.get("schema")
    if schema is None:
        return Asked(StructuredOutputsParams(json_object=True), place)
    return _made("json", schema, f"{place}.schema")


def _params(given: Mapping[str, Any]) -> StructuredOutputsParams:
    params = SamplingParams(structured_outputs=given).structured_outputs
    assert isinstance(params, StructuredOutputsParams)
    return params


def _made(kind: str, given: Any, place: str) -> Asked:
    try:
        return Asked(StructuredOutputsParams(**{kind: given}), place)
    except RequestError as error:
        own = f"{FIELD}.{kind}"
        raise RequestError(error.message.replace(own, place, 1), param=place) from None


async def check_structured(context: ServerContext, asked: Asked, params: SamplingParams) -> None:
    """Compiles the grammar, in a process that may be ended, before anything runs. Raises RequestError,
    TextWorkerError."""
    if asked.params is None or context.engine.text is None:
        return
    try:
        await context.engine.text.check_grammar(params)
    except RequestError as error:
        raise asked.named(error) from None
