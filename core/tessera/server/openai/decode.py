"""Decodes request bodies into structs. Invalid JSON, a value of the wrong type, and a field that is not supported yet
are a 400 that names the field."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import msgspec

from tessera.errors import RequestError

R = TypeVar("R")
_PLACE = re.compile(r"^(?P<what>.*?)(?: - at `(?:key in )?\$\.?(?P<path>[^`]*)`)?$", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(?P<name>\w+)`")
_FLOAT = re.compile(r"Expected `int[^,]*, got `float`")
_EXACT = 2**53
_MARK = b"\xef\xbb\xbf"  # a byte order mark, with which some programs begin a UTF-8 text
Values = tuple[Any, ...]

# Known fields that are not supported yet. A request that uses one is refused rather than answered without it. Each
# field has the values, besides null, that ask for nothing, such as its default.

GENERATION: Mapping[str, Values] = {
    "detokenize": (True,),
    "early_stopping": (False,),
    "ebnf": (),
    "grammar": (),
    "guided_choice": ([],),
    "guided_decoding_backend": (),
    "guided_grammar": (),
    "guided_json": (),
    "guided_regex": (),
    "guided_whitespace_pattern": (),
    "json_schema": (),
    "kv_transfer_params": ({},),
    "logits_processors": ([],),
    "mm_processor_kwargs": ({},),
    "regex": (),
    "repetition_detection": (),
    "structural_tag": (),
    "truncate_prompt_tokens": (),
    # of other servers
    "dry_multiplier": (0, 0.0),
    "dynatemp_range": (0, 0.0),
    "logprob_token_ids": ([],),
    "mirostat": (0,),
    "n_predict": (),
    "options": ({},),
    "repeat_penalty": (1, 1.0),
    "return_prompt_text": (False,),
    "tfs_z": (1, 1.0),
    "top_a": (0, 0.0),
    "typical_p": (1, 1.0),
    "xtc_probability": (0, 0.0),
}

COMPLETIONS: Mapping[str, Values] = {
    "functions": ([],),
    "max_completion_tokens": (),
    "prompt_embeds": (),
    "suffix": ("",),
    "thinking_token_budget": (),
    "tools": ([],),
    "top_logprobs": (0,),
}

CHAT: Mapping[str, Values] = {
    "audio": (),
    "best_of": (1,),
    "chat_template": (),
    "documents": ([],),
    "echo": (False,),
    "function_call": ("none",),
    "functions": ([],),
    "media_io_kwargs": ({},),
    "modalities": (["text"],),
    "prediction": (),
    "prompt_cache_retention": ("in_memory", "in-memory"),
    "suffix": ("",),
    "verbosity": ("medium",),
    "web_search_options": (),
}

_HINTS: Mapping[str, str] = {
    "chat_template": "cannot be set by a request",
    **dict.fromkeys(
        ("ebnf", "grammar", "guided_choice", "guided_grammar", "guided_json", "guided_regex", "json_schema", "regex"),
        "is not served; structured_outputs has it",
    ),
    "structural_tag": "is not served; response_format has it",
    "n_predict": "is called max_tokens here",
    "repeat_penalty": "is called repetition_penalty here",
    "options": "is of Ollama's API: put its fields beside the others",
}
_LONGEST_DEFAULT = 64


class Envelope:
    """Some fields of a request as undecoded JSON."""

    def __init__(self, fields: msgspec.Struct) -> None:
        self._fields = fields

    def raw(self, name: str) -> bytes:
        """The field's JSON; b"" if the field is absent."""
        return bytes(getattr(self._fields, name))

    def size(self, name: str) -> int:
        return len(memoryview(getattr(self._fields, name)))


class RequestDecoder(Generic[R]):
    """Decodes one kind of request in two passes.

    The first pass leaves the fields undecoded, so that sizes and unsupported fields are checked before any object is
    built from what the client sent. The second pass decodes the struct.

    unserved: fields that are not supported, with the values that ask for nothing. large: the fields that may be long,
    each with its limit in bytes of JSON; other_bytes: the limit of all others together. further: an additional check by
    the route; also: the fields that it looks at besides those above.
    """

    def __init__(
        self,
        kind: type[R],
        unserved: Mapping[str, Values],
        large: Mapping[str, int],
        other_bytes: int,
        further: Callable[[Envelope], None] | None = None,
        also: Sequence[str] = (),
    ) -> None:
        self._unserved = unserved
        self._large = large
        self._other_bytes = other_bytes
        self._further = further
        fields = [(name, msgspec.Raw, msgspec.Raw(b"")) for name in (*unserved, *large, *also)]
        self._envelope = msgspec.json.Decoder(msgspec.defstruct("Envelope", fields, kw_only=True))
        self._request = msgspec.json.Decoder(kind)

    def decode(self, body: bytes) -> R:
        """Raises RequestError."""
        body = body.removeprefix(_MARK)
        envelope = Envelope(decoded(self._envelope, body))
        self._check_sizes(envelope, len(body))
        for name, defaults in self._unserved.items():
            _check_unserved(name, envelope.raw(name), defaults)
        if self._further is not None:
            self._further(envelope)
        return decoded(self._request, body)

    def _check_sizes(self, envelope: Envelope, left: int) -> None:
        for name, most in self._large.items():
            size = envelope.size(name)
            if size > most:
                raise RequestError(f"{name} must be at most {most} bytes of JSON, got {size}.", param=name)
            left -= size
        if left > self._other_bytes:
            names = " and ".join(self._large)
            most = self._other_bytes
            raise RequestError(f"All fields except {names} must be at most {most} bytes of JSON, got {left}.")


def decoded(decoder: msgspec.json.Decoder[R], data: bytes, field: str = "") -> R:
    """Raises RequestError. field: the path of the data in the request; "" is the whole body."""
    try:
        return decoder.decode(data)
    except msgspec.ValidationError as error:
        if not _FLOAT.search(str(error)) or (whole := _with_integers(data)) == data:
            raise _explained(str(error), field) from None
        return decoded(decoder, whole, field)
    except UnicodeDecodeError:
        raise RequestError("The body is not UTF-8.") from None
    except RecursionError:
        raise RequestError("The JSON of the body is nested too deeply.") from None
    except msgspec.DecodeError as error:
        reason = str(error).removeprefix("JSON is malformed: ")
        raise RequestError(f"The body is not valid JSON: {reason[0].lower()}{reason[1:]}.") from None


def _with_integers(data: bytes) -> bytes:
    """JSON with integers in place of floats that are whole: some clients write 16.0 where an integer is due."""
    return msgspec.json.encode(_integers(msgspec.json.decode(data)))


def _integers(value: Any) -> Any:
    match value:
        case float() if value.is_integer() and abs(value) < _EXACT:
            return int(value)
        case list():
            return [_integers(each) for each in value]
        case dict():
            return {name: _integers(each) for name, each in value.items()}
    return value


def _explained(text: str, field: str) -> RequestError:
    match = _PLACE.match(text)
    assert match is not None
    what, path = match["what"].replace("`", "").replace("array", "list"), match["path"] or ""
    path = f"{field}{path}" if path.startswith("[") or not path else ".".join(filter(None, (field, path)))
    if missing := _MISSING.match(text):
        path = ".".join(filter(None, (path, missing["name"])))
        return RequestError(f"{path} is missing.", param=path)
    return RequestError(f"{path or 'The body'}: {what[0].lower()}{what[1:]}.", param=path or None)


# ---- fields that are not supported yet -------------------------------------------------------------------------------


def _check_unserved(name: str, raw: bytes, defaults: Values) -> None:
    """Raises RequestError if the field asks for something. raw: its JSON; b"" if it is absent."""
    if raw and not asks_for_nothing(raw, defaults):
        raise RequestError(f"{name} {_HINTS.get(name, 'is not supported yet')}; remove it.", param=name)


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
