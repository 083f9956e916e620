"""Decodes request bodies into structs. Invalid JSON, a value of the wrong type, and a field that is not supported yet
are a 400 that names the field."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence, Set
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import msgspec

from tessera.errors import RequestError
from tessera.text.job_packing import give_way

if TYPE_CHECKING:
    from tessera.server.access import Counts
    from tessera.server.assembly import Assembly
    from tessera.server.settings import ServerSettings

R = TypeVar("R")
_FLOAT_FOR_INTEGER = re.compile(r"Expected `(?:[^`]* )?int\b[^`]*`, got `float`(?: - at `\$\.?(?P<member>\w*))?")
_PLACE = re.compile(r"^(?P<what>.*?)(?: - at `(?:key in )?\$\.?(?P<path>[^`]*)`)?$", re.DOTALL)
_INVALID = re.compile(r"^Invalid (enum )?value '.*?'(?= - at|$)", re.DOTALL)
_UNKNOWN = re.compile(r"Object contains unknown field `(?:(?P<name>[A-Za-z0-9_]{1,64})`)?")
_MISSING = re.compile(r"Object missing required field `(?P<name>\w+)`")
Values = tuple[Any, ...]

# Known fields that are not supported yet. A request that uses one is refused rather than answered without it. Each
# field has the values, besides null, that ask for nothing, such as its default.


WITHOUT_EFFECT = frozenset(
    {
        # of several APIs
        *("metadata", "parallel_tool_calls", "service_tier", "store"),
        # of OpenAI's
        *("access_programs", "context_management", "image", "prediction", "prompt_cache_options"),
        *("prompt_cache_retention", "safety_identifier", "stream_options"),
        # of Anthropic's
        *("anthropic_version", "cache_control", "diagnostics", "inference_geo", "output_format", "speed"),
        *("user_profile_id", "workspace_id"),
        # of Ollama's
        *("height", "keep_alive", "steps", "width"),
        # of vLLM's
        *("return_mm_kwargs", "return_token_offsets", "session_id"),
    }
)
"""Fields that change nothing about an answer here, wherever they are not served."""

_HINTS: Mapping[str, str] = {
    "assets": "has images, which are not read here",
    "chat_template": "cannot be set by a request",
    **dict.fromkeys(
        ("ebnf", "grammar", "guided_choice", "guided_grammar", "guided_json", "guided_regex", "json_schema", "regex"),
        "is not served; structured_outputs has it",
    ),
    "n_predict": "is called max_tokens here",
    "n_probs": "is called logprobs here",
    "options": "is of Ollama's API: put its fields beside the others",
    "repeat_penalty": "is called repetition_penalty here",
    "structural_tag": "is not served; response_format has it",
}
_MODERATION = "moderation"
_LONGEST_DEFAULT = 64
LONG_BODY = 1 << 16
"""Bytes of JSON that take the event loop some tenths of a millisecond; those that are longer are decoded beside it."""


class Envelope:
    """Some fields of a request as undecoded JSON."""

    def __init__(self, fields: msgspec.Struct) -> None:
        self._fields = fields

    def raw(self, name: str) -> bytes:
        """The field's JSON; b"" if the field is absent."""
        return bytes(getattr(self._fields, name))

    def size(self, name: str) -> int:
        return len(memoryview(getattr(self._fields, name)))


class BodyContext(Protocol):
    """What decoding needs of a server."""

    @property
    def settings(self) -> ServerSettings:
        """Have the limits on bodies."""
        ...

    @property
    def assembly(self) -> Assembly:
        """Decodes long ones."""
        ...

    @property
    def counts(self) -> Counts:
        """Has the fields that nobody knows."""
        ...


class RequestDecoder(Generic[R]):
    """Decodes one kind of request in two passes.

    The first pass leaves the fields undecoded, so that sizes and unsupported fields are checked before any object is
    built from what the client sent. The second pass decodes the struct. Fields that are neither of the struct nor of
    any list here are counted, in bodies that are not long.
    """

    def __init__(
        self,
        context: BodyContext,
        kind: type[R],
        unserved: Mapping[str, Values],
        large: Mapping[str, int],
        further: Callable[[Envelope], None] | None = None,
        also: Sequence[str] = (),
    ) -> None:
        """unserved: fields that are not supported, with the values that ask for nothing. large: the fields that may be
        long, each with its limit in bytes of JSON; all others have one together. further: an additional check by the
        route. also: the fields that it looks at besides those above."""
        self._unserved = unserved
        self._large = large
        self._other_bytes = context.settings.limits.other_bytes
        self._further = further
        self._assembly = context.assembly
        self._unknown = context.counts.unknown_fields
        fields = [(name, msgspec.Raw, msgspec.Raw(b"")) for name in (*unserved, *large, *also, _MODERATION)]
        self._envelope = msgspec.json.Decoder(msgspec.defstruct("Envelope", fields, kw_only=True))
        self._request = msgspec.json.Decoder(kind)
        own = (field.encode_name for field in msgspec.structs.fields(kind))  # type: ignore[arg-type]  # of a struct
        self._known_names = WITHOUT_EFFECT.union(unserved, large, also, own, (_MODERATION,))

    async def decode(self, body: bytes) -> R:
        """Raises RequestError."""
        if len(body) < LONG_BODY:
            request, unknown = self._decode(body)
        else:
            request, unknown = await self._assembly.run(partial(self._decode, body, give_way))
        if unknown:
            self._unknown.add(unknown)
        return request

    def _decode(self, body: bytes, between: Callable[[], None] = lambda: None) -> tuple[R, Set[str]]:
        """The request, and the names of its unknown fields. between: called between two passes over the body."""
        envelope = Envelope(decoded(self._envelope, body))
        between()
        self._check_sizes(envelope, len(body))
        for name, defaults in self._unserved.items():
            _check_unserved(name, envelope.raw(name), defaults)
        _check_moderation(envelope.raw(_MODERATION))
        if self._further is not None:
            self._further(envelope)
        between()
        request = decoded(self._request, body)
        between()
        # Another pass over a long body would make others wait.
        return request, _MEMBERS.decode(body).keys() - self._known_names if len(
            body
        ) <= self._other_bytes else frozenset()

    def _check_sizes(self, envelope: Envelope, other_bytes: int) -> None:
        for name, most in self._large.items():
            size = envelope.size(name)
            if size > most:
                raise RequestError(f"{name} must be at most {most} bytes of JSON, got {size}.", param=name)
            other_bytes -= size
        if other_bytes > self._other_bytes:
            names = " and ".join(self._large)
            most = self._other_bytes
            raise RequestError(f"All fields except {names} must be at most {most} bytes of JSON, got {other_bytes}.")


def decoded(decoder: msgspec.json.Decoder[R], data: bytes, field: str = "") -> R:
    """Raises RequestError. field: the path of the data in the request; "" is the whole body."""
    try:
        return _decoded(decoder, data)
    except msgspec.ValidationError as error:
        raise _explained(str(error), field) from None
    except UnicodeDecodeError:
        raise RequestError("The body is not UTF-8.") from None
    except RecursionError:
        raise RequestError("The JSON of the body is nested too deeply.") from None
    except msgspec.DecodeError as error:
        reason = str(error).removeprefix("JSON is malformed: ")
        raise RequestError(f"The body is not valid JSON: {reason[0].lower()}{reason[1:]}.") from None


# ---- whole numbers --------------------------------------------------------------------------------------------------


def _decoded(decoder: msgspec.json.Decoder[R], data: bytes) -> R:
    """Takes a whole number that is written as a float (16.0) wherever an integer is due, and nothing else that a strict
    decoder does not: a text stays a text. Only the member of the body at fault is decoded again."""
    mended: set[str] = set()
    while True:
        try:
            return decoder.decode(data)
        except msgspec.ValidationError as error:
            found = _FLOAT_FOR_INTEGER.match(str(error))
            member = "" if found is None else found["member"] or ""
            if found is None or member in mended:
                raise
            mended.add(member)
            data = _with_integers(data, member)


def _with_integers(data: bytes, member: str) -> bytes:
    """member: the name of the one to change; "" is the whole of the data."""
    if not member:
        return msgspec.json.encode(_INTEGERS.decode(data))
    members = _MEMBERS.decode(data)
    members[member] = msgspec.Raw(msgspec.json.encode(_INTEGERS.decode(members[member])))
    return msgspec.json.encode(members)


def _integer_or_float(text: str) -> int | float:
    number = float(text)
    if math.isinf(number):
        raise msgspec.DecodeError("number out of range")
    return int(number) if number.is_integer() else number


_INTEGERS = msgspec.json.Decoder(float_hook=_integer_or_float)
_MEMBERS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ANYTHING = msgspec.json.Decoder()


# ---- errors ---------------------------------------------------------------------------------------------------------


def _explained(text: str, field: str) -> RequestError:
    match = _PLACE.match(_INVALID.sub("not one of the known values", text))  # what a client sends is not said back
    assert match is not None
    what, path = match["what"].replace("`", "").replace("array", "list"), match["path"] or ""
    path = f"{field}{path}" if path.startswith("[") or not path else ".".join(filter(None, (field, path)))
    if unknown := _UNKNOWN.match(text):
        if unknown["name"] is None:
            return RequestError(f"{path or 'The body'} has a field that is not known; remove it.", param=path or None)
        path = ".".join(filter(None, (path, unknown["name"])))
        return RequestError(f"{path} is not a known field; remove it.", param=path)
    if missing := _MISSING.match(text):
        path = ".".join(filter(None, (path, missing["name"])))
        return RequestError(f"{path} is missing.", param=path)
    return RequestError(f"{path or 'The body'}: {what[0].lower()}{what[1:]}.", param=path or None)


# ---- fields that are not supported yet -------------------------------------------------------------------------------


def _check_unserved(name: str, raw: bytes, defaults: Values) -> None:
    """Raises RequestError if the field asks for something. raw: its JSON; b"" if it is absent."""
    if raw and not asks_for_nothing(raw, defaults):
        raise RequestError(f"{name} {_HINTS.get(name, 'is not supported yet')}; remove it.", param=name)


def _check_moderation(raw: bytes) -> None:
    """Raises RequestError if the policy of OpenAI's field says that something is to be blocked. Scores, which are not
    given, change no answer."""
    asked = decoded(_ANYTHING, raw, _MODERATION) if raw else None
    policy = asked.get("policy") or {} if isinstance(asked, dict) else asked
    if policy is None:
        return
    if not isinstance(policy, dict):
        raise RequestError("moderation must be an object, and so must its policy.", param=_MODERATION)
    if any(isinstance(part, dict) and part.get("mode") == "block" for part in policy.values()):
        raise RequestError("moderation cannot block here, where no model moderates; remove it.", param=_MODERATION)


def asks_for_nothing(raw: bytes, defaults: Values) -> bool:
    """Whether the JSON is null or one of the defaults. true and 1 are different values."""
    if len(raw) > _LONGEST_DEFAULT:
        return False
    try:
        value = msgspec.json.decode(raw)
    except ValueError:
        # The first pass skipped over this value, so its numbers may be out of range and its strings not UTF-8.
        return False
    return value is None or any(_same(value, default) for default in defaults)


def _same(value: Any, default: Any) -> bool:
    return bool(value == default) and isinstance(value, bool) == isinstance(default, bool)
