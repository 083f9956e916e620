"""A request's bytes to its struct: every way in which JSON can be wrong is a 400 that names the field."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Generic, TypeVar

import msgspec

from tessera.errors import RequestError
from tessera.server.openai import not_served
from tessera.server.openai.not_served import Values

R = TypeVar("R")
_PLACE = re.compile(r"^(?P<what>.*?)(?: - at `(?:key in )?\$\.?(?P<path>[^`]*)`)?$", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(?P<name>\w+)`")


class Envelope:
    """Some fields of a request as undecoded JSON."""

    def __init__(self, fields: msgspec.Struct) -> None:
        self._fields = fields

    def raw(self, name: str) -> bytes:
        """b"" where the field is absent."""
        return bytes(getattr(self._fields, name))

    def size(self, name: str) -> int:
        return len(memoryview(getattr(self._fields, name)))


class RequestDecoder(Generic[R]):
    """Decodes one kind of request in two passes.

    An envelope first, so that sizes and fields that are not served are looked at before anything is built of what a
    client sends, then the struct itself.

    large: the fields that may be long, with the most bytes each may have; all others together have `other_bytes`.
    further, also: a check of the family's own, and the fields it looks at.
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
        envelope = Envelope(decoded(self._envelope, body))
        self._check_sizes(envelope, len(body))
        for name, defaults in self._unserved.items():
            not_served.check(name, envelope.raw(name), defaults)
        if self._further is not None:
            self._further(envelope)
        return decoded(self._request, body)

    def _check_sizes(self, envelope: Envelope, left: int) -> None:
        for name, most in self._large.items():
            size = envelope.size(name)
            if size > most:
                raise RequestError(f"{name} has at most {most} bytes of JSON, got {size}.", param=name)
            left -= size
        if left > self._other_bytes:
            names = " and ".join(self._large)
            raise RequestError(f"All fields but {names} have at most {self._other_bytes} bytes of JSON, got {left}.")


def decoded(decoder: msgspec.json.Decoder[R], data: bytes, field: str = "") -> R:
    """Raises RequestError; `field` is where the data stands in the request."""
    try:
        return decoder.decode(data)
    except msgspec.ValidationError as error:
        raise _explained(str(error), field) from None
    except UnicodeDecodeError:
        raise RequestError("The body is not UTF-8.") from None
    except RecursionError:
        raise RequestError("The JSON of the body is nested too deeply.") from None
    except msgspec.DecodeError as error:
        reason = str(error).removeprefix("JSON is malformed: ")
        raise RequestError(f"The body is not JSON: {reason[0].lower()}{reason[1:]}.") from None


def _explained(text: str, field: str) -> RequestError:
    match = _PLACE.match(text)
    assert match is not None
    what, path = match["what"].replace("`", "").replace("array", "list"), match["path"] or ""
    path = f"{field}{path}" if path.startswith("[") or not path else ".".join(filter(None, (field, path)))
    if missing := _MISSING.match(text):
        path = ".".join(filter(None, (path, missing["name"])))
        return RequestError(f"{path} is missing.", param=path)
    return RequestError(f"{path or 'The body'}: {what[0].lower()}{what[1:]}.", param=path or None)
