"""The pieces of a stream.

What is the same in all of them is encoded once a stream, so that a token costs little more than its text.
"""

from __future__ import annotations

import msgspec

from tessera.request import CompletionOutput
from tessera.server.openai.generation import Generation, Identity
from tessera.server.openai.protocol import GenerationFields

_encode = msgspec.json.Encoder().encode


class ChunkWriter:
    """Frames the choices of one stream as events, with the usage that was asked for."""

    def __init__(self, identity: Identity, kind: str, generation: Generation, request: GenerationFields) -> None:
        options = request.stream_options
        self._generation = generation
        asked = options is not None and bool(options.include_usage)
        self._usage_at_end = asked or generation.always_tells_usage
        self._usage_always = options is not None and bool(options.continuous_usage_stats)
        head = _encode({"id": identity.id, "object": kind, "created": identity.created, "model": identity.model})
        self._head = b"data: " + head[:-1] + b',"choices":['
        self._tail = b'],"usage":null}\n\n' if self._usage_at_end else b"]}\n\n"

    def chunk(self, choice: bytes) -> bytes:
        """An event of one choice."""
        return self._head + choice + (self._with_usage() if self._usage_always else self._tail)

    def last(self) -> bytes:
        """The event behind all choices; nothing where no usage was asked for."""
        return self._head + self._with_usage() if self._usage_at_end else b""

    def _with_usage(self) -> bytes:
        return b'],"usage":' + _encode(self._generation.usage()) + b"}\n\n"


def piece(index: int, content: bytes, logprobs: bytes = b"null", token_ids: bytes = b"") -> bytes:
    """A choice that goes on. content: a JSON object's member or members, as `"text":"..."`."""
    return b'{"index":%d,%b,"logprobs":%b,"finish_reason":null%b}' % (index, content, logprobs, token_ids)


def finish(index: int, content: bytes, answer: CompletionOutput) -> bytes:
    """A choice that ended."""
    return b'{"index":%d,%b,"logprobs":null,"finish_reason":%b,"stop_reason":%b}' % (
        index,
        content,
        _encode(answer.finish_reason),
        _encode(answer.stop_reason),
    )


def token_ids(answer: CompletionOutput) -> bytes:
    return b',"token_ids":' + _encode(answer.token_ids)
