"""Writes the chunks of a stream: its choices as events, with their usage."""

from __future__ import annotations

import msgspec

from tessera.engine.input_processor import Prompt
from tessera.request import CompletionOutput
from tessera.server.generation.fields import GenerationFields
from tessera.server.generation.output import Generation
from tessera.server.generation.prepare import Identity
from tessera.server.generation.usage import TokenUsage
from tessera.server.openai.protocol import Usage

_encode = msgspec.json.Encoder().encode
NO_TOKEN_IDS = b',"token_ids":[]'
"""Of a choice without new tokens: where they are asked for, clients read them in every choice."""


class ChunkWriter:
    """Writes the choices of one stream as events, with the usage that the request asked for, as vLLM counts it:
    the last event has that of all choices, and each event, if that is asked for too, that of its own choice.

    What all events share is encoded once per stream, so that a token costs little more than encoding its text.
    """

    def __init__(self, identity: Identity, kind: str, generation: Generation, request: GenerationFields) -> None:
        options = request.stream_options
        self._generation = generation
        forced = generation.force_include_usage
        include_usage = options is not None and bool(options.include_usage)
        continuous = include_usage and options is not None and bool(options.continuous_usage_stats)
        self._usage_at_end = include_usage or forced
        self._usage_always = continuous or forced
        head = {"id": identity.id, "object": kind, "created": identity.created, "model": identity.model}
        shared = _encode({**head, "system_fingerprint": generation.model.fingerprint})
        self._head = b"data: " + shared[:-1] + b',"choices":['
        self._tail = b',"usage":null}\n\n' if self._usage_at_end else b"}\n\n"

    def chunk(self, index: int, choice: bytes, *, begins: bool = False, members: bytes = b"") -> bytes:
        """An event with one choice, which has this index. begins: before the choice's first token. members: further
        members of the event, such as `,"a":1`."""
        usage = self._usage(self._generation.choice_usage(index, begins=begins)) if self._usage_always else self._tail
        return self._head + choice + b"]" + members + usage

    def last(self) -> bytes:
        """The event after all choices, with the usage; empty if the request asked for none."""
        return self._head + b"]" + self._usage(self._generation.usage()) if self._usage_at_end else b""

    def _usage(self, tokens: TokenUsage) -> bytes:
        return b',"usage":' + _encode(Usage.from_tokens(tokens)) + b"}\n\n"


def piece(index: int, content: bytes, logprobs: bytes = b"null", token_ids: bytes = b"") -> bytes:
    """A choice that goes on. content: members of a JSON object, such as `"text":"..."`."""
    return b'{"index":%d,%b,"logprobs":%b,"finish_reason":null%b}' % (index, content, logprobs, token_ids)


def finish(index: int, content: bytes, answer: CompletionOutput, token_ids: bytes = b"") -> bytes:
    """A choice that has ended. content: as for piece()."""
    return b'{"index":%d,%b,"logprobs":null,"finish_reason":%b,"stop_reason":%b%b}' % (
        index,
        content,
        _encode(answer.finish_reason),
        _encode(answer.stop_reason),
        token_ids,
    )


def token_ids(answer: CompletionOutput) -> bytes:
    return b',"token_ids":' + _encode(answer.token_ids)


def prompt_token_ids(prompt: Prompt) -> bytes:
    return b',"prompt_token_ids":' + _encode(prompt.ids.tolist())
