"""What an answer must look like: the fields response_format and structured_outputs of a request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from tessera.errors import RequestError
from tessera.sampling_params import SamplingParams, StructuredOutputsParams
from tessera.server.generation.fields import GenerationFields
from tessera.server.served_model import ServedModel
from tessera.text.grammar import FIELD

_FORMAT = "response_format"
_TYPES = ("text", "json_object", "json_schema", "structural_tag")


class RequestedGrammar(NamedTuple):
    """What an answer must look like, and where the request says so."""

    # None: an answer may look like anything
    params: StructuredOutputsParams | None = None
    # the field of the request, for what SamplingParams calls `structured_outputs.{kind}`; "": it is called so there too
    place: str = ""

    def explain(self, error: RequestError) -> RequestError:
        """An error of the grammar, in terms of the request."""
        field = None if self.params is None else f"{FIELD}.{self.params.kind}"
        if field is None or not self.place or error.param is None or field not in error.param:
            return error
        param = error.param.replace(field, self.place, 1)
        return RequestError(error.message.replace(field, self.place, 1), param=param, code=error.code)


def structured_outputs(request: GenerationFields) -> RequestedGrammar:
    """Raises RequestError."""
    given = request.response_format
    if given is None or given.get("type") == "text":
        return (
            RequestedGrammar()
            if request.structured_outputs is None
            else RequestedGrammar(_params(request.structured_outputs))
        )
    if request.structured_outputs is not None:
        raise RequestError(f"{_FORMAT} and {FIELD} cannot be combined: leave out one of them.", param=_FORMAT)
    return _response_format(given)


def _response_format(fields: Mapping[str, Any]) -> RequestedGrammar:
    match fields.get("type"):
        case "json_object":
            schema = fields.get("schema")
            if schema is None:
                return RequestedGrammar(StructuredOutputsParams(json_object=True), f"{_FORMAT}.type")
            return build_grammar("json", schema, f"{_FORMAT}.schema")
        case "json_schema":
            return _json_schema(fields.get("json_schema"))
        case "structural_tag":
            return build_grammar("structural_tag", dict(fields), _FORMAT)
    raise RequestError(f"{_FORMAT}.type must be one of {', '.join(_TYPES)}.", param=f"{_FORMAT}.type")


def _json_schema(fields: Any) -> RequestedGrammar:
    place = f"{_FORMAT}.json_schema"
    if not isinstance(fields, Mapping):
        raise RequestError(f"{place} must be an object with a name and a schema.", param=place)
    schema = fields.get("schema")
    if schema is None:
        return RequestedGrammar(StructuredOutputsParams(json_object=True), place)
    strict = fields.get("strict")
    if not isinstance(strict, bool | None):
        raise RequestError(f"{place}.strict must be true or false.", param=f"{place}.strict")
    return build_grammar("json", schema, f"{place}.schema", strict=strict)


def _params(fields: Mapping[str, Any]) -> StructuredOutputsParams:
    params = SamplingParams(structured_outputs=fields).structured_outputs
    assert isinstance(params, StructuredOutputsParams)
    return params


def build_grammar(kind: str, value: Any, place: str, *, strict: bool | None = None) -> RequestedGrammar:
    """What one field of StructuredOutputsParams asks for. Raises RequestError."""
    try:
        return RequestedGrammar(StructuredOutputsParams(**{kind: value, "strict": strict}), place)
    except RequestError as error:
        own = f"{FIELD}.{kind}"
        raise RequestError(error.message.replace(own, place, 1), param=place) from None


def tag_format(grammar: RequestedGrammar) -> dict[str, Any]:
    """The same as a format of structural tags. Raises RequestError for a structural tag of the older kind."""
    params = grammar.params
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
            place = grammar.place or f"{FIELD}.structural_tag"
            raise RequestError(f"{place} must have a format where the request has tools.", param=place)
        found: dict[str, Any] = tag["format"]
        return found
    schema = {"type": "object"} if params.json is None else msgspec.json.decode(params.json)
    strict = {} if params.strict is None else {"strict": params.strict}
    return {"type": "json_schema", "json_schema": schema, **strict}


async def compile_grammar(model: ServedModel, grammar: RequestedGrammar, client: str) -> None:
    """Compiles a grammar, in a process that may be ended. Raises RequestError, TextWorkerError."""
    if model.text is None:
        return
    try:
        await model.text.check_grammar(SamplingParams(structured_outputs=grammar.params), client)
    except RequestError as error:
        raise grammar.explain(error) from None


async def prepare_params(
    model: ServedModel, grammar: RequestedGrammar, params: SamplingParams, client: str
) -> SamplingParams:
    """The params as the engine takes them, before anything runs: with the ids of bad words, and with the grammar that
    was compiled, without what of it cannot be enforced and need not be. Raises RequestError, TextWorkerError."""
    try:
        return await model.engine.prepare_params(params, client)
    except RequestError as error:
        raise grammar.explain(error) from None
