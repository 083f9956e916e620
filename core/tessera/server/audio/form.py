"""The form of a transcription, read from a request's body."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import msgspec
from starlette.types import Receive, Scope

from tessera.errors import RequestError
from tessera.server.audio.protocol import TranscriptionForm
from tessera.server.http import ClientGone, header
from tessera.server.multipart import FORM_BYTES, FormPart, FormReader

_FILE = "file"
_LISTS = frozenset({"timestamp_granularities"})
_FIELDS = frozenset(one.name for one in msgspec.structs.fields(TranscriptionForm))
# What OpenAI's other models of audio take, and those that vLLM takes besides.
_UNSERVED = frozenset({"include", "known_speaker_names", "known_speaker_references", "to_language"})
_SHOWN_CHARS = 64
_MOST_PARTS = 256


@dataclass
class ReceivedForm:
    """data: of the file. fields: texts by name."""

    data: bytearray = field(default_factory=bytearray)
    fields: dict[str, list[bytes]] = field(default_factory=dict)

    def checked(self, count_unknown: Callable[[Iterable[str]], None]) -> TranscriptionForm:
        """count_unknown: takes the names of fields that have no effect. Raises RequestError."""
        values: dict[str, object] = {_FILE: ""}
        for name, said in self.fields.items():
            if name in _UNSERVED:
                raise RequestError(f"{name} is not supported here; remove it.", param=name)
            try:
                texts = [one.decode() for one in said]
            except UnicodeDecodeError as error:
                raise RequestError(f"{name} must be UTF-8.", param=name) from error
            if len(texts) > 1 and name not in _LISTS:
                raise RequestError(f"{name} is there twice.", param=name)
            values[name] = texts if name in _LISTS else texts[0]
        count_unknown(values.keys() - _FIELDS)
        try:
            return msgspec.convert(
                {name: values[name] for name in values.keys() & _FIELDS}, TranscriptionForm, strict=False
            )
        except msgspec.ValidationError as error:
            what, _, where = str(error).partition(" - at `$.")
            name = where.rstrip("`").partition("[")[0]
            raise RequestError(f"{name} is wrong: {what}.", param=name or None) from error


async def read_form(scope: Scope, receive: Receive) -> ReceivedForm:
    """Raises RequestError, ClientGone."""
    reader = FormReader(header(scope, b"content-type") or b"")
    form, name, size, seen, more = ReceivedForm(), "", 0, 0, True
    has_file = False
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        more = message.get("more_body", False)
        for part in reader.feed(message.get("body", b"")):
            if isinstance(part, FormPart):
                name, seen = part.name[:_SHOWN_CHARS].removesuffix("[]"), seen + 1
                if seen > _MOST_PARTS:
                    raise RequestError(f"A form has at most {_MOST_PARTS} fields.")
                if name == _FILE:
                    if has_file or part.filename is None:
                        raise RequestError("file must be one file, with a filename.", param=_FILE)
                    has_file = True
                else:
                    form.fields.setdefault(name, []).append(b"")
            elif name == _FILE:
                form.data += part
            else:
                size += len(part)
                if size > FORM_BYTES:
                    raise RequestError(f"The fields of a form have at most {FORM_BYTES} bytes besides its file.")
                form.fields[name][-1] += part
    reader.end()
    if not has_file:
        raise RequestError("file is missing.", param=_FILE)
    return form
