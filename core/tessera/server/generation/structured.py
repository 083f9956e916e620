"""What an answer must look like: the fields response_format and structured_outputs of a request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from tessera.errors import RequestError
from tessera.sampling_params import SamplingParams, StructuredOutputsParams
from tessera.server.context import ServerContext
from tessera.server.generation.fields import GenerationFields
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
            return made("json", schema, f"{_FORMAT}.schema")
        case "json_schema":
            return _of_schema(given.get("json_schema"))
        case "structural_tag":
            return made("structural_tag", dict(given), _FORMAT)
    raise RequestError(f"{_FORMAT}.type must be one of {', '.join(_TYPES)}.", param=f"{_FORMAT}.type")


def _of_schema(given: Any) -> Asked:
    place = f"{_FORMAT}.json_schema"
    if not isinstance(given, Mapping):
        raise RequestError(f"{place} must be an object with a name and a schema.", param=place)
    schema = given.get("schema")
    if schema is None:
        return Asked(StructuredOutputsParams(json_object=True), place)
    strict = given.get("strict")
    if not isinstance(strict, bool | None):
        raise RequestError(f"{place}.strict must be true or false.", param=f"{place}.strict")
    return made("json", schema, f"{place}.schema", strict=strict)


def _params(given: Mapping[str, Any]) -> StructuredOutputsParams:
    params = SamplingParams(structured_outputs=given).structured_outputs
    assert isinstance(params, StructuredOutputsParams)
    return params


def made(kind: str, given: Any, place: str, *, strict: bool | None = None) -> Asked:
    """What one field of StructuredOutputsParams asks for. Raises RequestError."""
    try:
        return Asked(StructuredOutputsParams(**{kind: given, "strict": strict}), place)
    except RequestError as error:
        own = f"{FIELD}.{kind}"
        raise RequestError(error.message.replace(own, place, 1), param=place) from None


def format_of(asked: Asked) -> dict[str, Any]:
    """The same as a format of structural tags. Raises RequestError for a structural tag of the older kind."""
    params = asked.params
    assert params is not None
    if params.choice is not None:
        return {"type": "or", "elements": [{"type": "const_string", "value": text} for text in params.choice]}
    if params.regex is not None:
        return {"type": "regex", "pattern": params.regex}
    if params.grammar is not None:
        return {"type": "grammar", "grammar": params.grammar}
    if params.structural_tag is not None:
        tag = msgspec.json.decode(params.structural_tag)
        if "format" not in tag:
            place = asked.place or f"{FIELD}.structural_tag"
            raise RequestError(f"{place} must have a format where the request has tools.", param=place)
        found: dict[str, Any] = tag["format"]
        return found
    schema = {"type": "object"} if params.json is None else msgspec.json.decode(params.json)
    strict = {} if params.strict is None else {"strict": params.strict}
    return {"type": "json_schema", "json_schema": schema, **strict}


async def check_structured(context: ServerContext, asked: Asked, params: SamplingParams) -> SamplingParams:
    """Compiles the grammar, in a process that may be ended, before anything runs. Returns the params with what is left
    of it if some of it cannot be enforced and need not be. Raises RequestError, TextWorkerError."""
    if asked.params is None or context.engine.text is None:
        return params
    try:
        return await context.engine.text.check_grammar(params)
    except RequestError as error:
        raise asked.named(error) from None
