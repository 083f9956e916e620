"""A field of a request that holds texts or token ids: one text, the ids of one, or a list of either."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple

import msgspec

from tessera.errors import RequestError
from tessera.server.assembly import Assembly
from tessera.server.decode import LONG_BODY, Envelope, asks_for_nothing, decoded
from tessera.server.openapi import field_schema
from tessera.server.settings import Limits

_TEXT = msgspec.json.Decoder(str)
_TEXTS = msgspec.json.Decoder(list[str])
_IDS = msgspec.json.Decoder(list[int])
_LISTS = msgspec.json.Decoder(list[msgspec.Raw])


class Prompts(NamedTuple):
    """What such a field holds: texts, or the token ids of each, never both."""

    texts: list[str]
    ids: list[list[int]]
    # Whether the field is a list of them, so that errors name one by its number.
    listed: bool

    def place(self, name: str, index: int) -> str:
        """What errors call one of them. name: of the field."""
        return f"{name}[{index}]" if self.listed else name


class PromptField(NamedTuple):
    name: str
    # How many texts it may hold.
    limit: int
    # What errors call these.
    plural: str

    def check(self, envelope: Envelope, limits: Limits, max_model_len: int) -> None:
        """Raises RequestError for too many texts or tokens. Counts in the JSON, so that they are never decoded.
        envelope: must have the fields of this name and truncate_prompt_tokens."""
        raw, truncates = envelope.raw(self.name), envelope.raw("truncate_prompt_tokens")
        if truncates and not asks_for_nothing(truncates, ()):
            max_model_len = max(max_model_len, limits.detokenize_tokens)
        kind = _kind(raw)
        if kind == "texts":
            # Escaped quotes are not counted. `\\"` is taken for one, so the count may be too low but never too high.
            self._check_count((raw.count(b'"') - raw.count(b'\\"')) // 2)
        elif kind == "ids lists":
            self._check_count(raw.count(b"[") - 1)
            self._check_tokens(raw, max_model_len, self.limit)
        elif kind == "ids":
            self._check_tokens(raw, max_model_len, 1)

    def holds_objects(self, raw: msgspec.Raw) -> bool:
        """Whether it is a list that begins with an object, which decode() does not take."""
        return _kind(bytes(memoryview(raw)[:64])) == "objects"

    async def read(self, raw: msgspec.Raw, assembly: Assembly) -> Prompts:
        """As decode(), beside the event loop if it is long."""
        if len(memoryview(raw)) < LONG_BODY:
            return self.decode(bytes(raw))
        return await assembly.run(partial(self.decode, bytes(raw)))

    def decode(self, raw: bytes) -> Prompts:
        """raw: the JSON of the field. Raises RequestError."""
        kind, name = _kind(raw), self.name
        prompts = Prompts([], [], kind in ("texts", "ids lists"))
        if kind == "text":
            prompts.texts.append(decoded(_TEXT, raw, name))
        elif kind == "texts":
            texts = decoded(_TEXTS, raw, name)
            prompts.texts.extend(texts)
        elif kind == "ids lists":
            # One by one: decoding holds the interpreter's lock, which the event loop gets in between.
            lists = decoded(_LISTS, raw, name)
            prompts.ids.extend(decoded(_IDS, bytes(own), f"{name}[{index}]") for index, own in enumerate(lists))
        elif kind == "ids":
            prompts.ids.append(decoded(_IDS, raw, name))
        else:
            raise RequestError(f"{name} must be a string, token ids, or a list of either, and not empty.", param=name)
        self._check_count(len(prompts.texts) or len(prompts.ids))
        values: Sequence[str | Sequence[int]] = prompts.texts or prompts.ids
        for index, prompt in enumerate(values):
            if not prompt:
                place = prompts.place(name, index)
                raise RequestError(f"{place} is empty: it must have at least one character or token.", param=place)
        return prompts

    def _check_count(self, count: int) -> None:
        if count > self.limit:
            raise RequestError(
                f"{self.name} must have at most {self.limit} {self.plural}, got {count}.", param=self.name
            )

    def _check_tokens(self, raw: bytes, max_model_len: int, texts: int) -> None:
        count = raw.count(b",") + 1
        if count > max_model_len * texts:
            text = f"This model's maximum context length is {max_model_len} tokens."
            raise RequestError(
                f"{text} However, you requested {count} tokens.", param=self.name, code="context_length_exceeded"
            )


def prompt_schema(limit: int, *others: Mapping[str, Any]) -> msgspec.Meta:
    """The schema of such a field, whose type is Raw. limit: as of PromptField. others: what a list may have instead."""
    ids = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}
    text = {"type": "string", "minLength": 1}
    many: dict[str, Any] = {"type": "array", "minItems": 1, "maxItems": limit}
    return field_schema(anyOf=[text, ids, *({**many, "items": dict(one)} for one in (text, ids, *others))])


def _kind(raw: bytes) -> Literal["text", "texts", "ids", "ids lists", "objects"] | None:
    """What the field holds, as the start of its JSON shows; None for an empty list and for a value of the wrong
    type."""
    if raw[:1] == b'"':
        return "text"
    if raw[:1] != b"[":
        return None
    match raw[1:64].lstrip()[:1]:
        case b'"':
            return "texts"
        case b"[":
            return "ids lists"
        case b"{":
            return "objects"
        case b"" | b"]":
            return None
        case _:
            return "ids"
