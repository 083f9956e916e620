"""Log probabilities as completions have them, and those of prompts in vLLM's format."""

from __future__ import annotations

from collections.abc import Sequence

from tessera.request import CompletionOutput
from tessera.server.generation.logprobs import LogprobWriter, Position, TextOffsets, finite
from tessera.server.openai.protocol import CompletionLogprobs, PromptLogprob, PromptLogprobs
from tessera.text import IncrementalDetokenizer, Vocabulary


class EchoedLogprobs:
    """The log probabilities of prompts, for choices whose text begins with the prompt (echo). All choices of a prompt
    have the same, which are made once if they come one after the other."""

    def __init__(self, writer: LogprobWriter) -> None:
        self._writer = writer
        self._last: tuple[int, CompletionLogprobs] | None = None

    def write(
        self, prompt: int, ids: Sequence[int], positions: Sequence[Position | None], text: str
    ) -> CompletionLogprobs:
        """prompt: its number in the request."""
        if self._last is not None and self._last[0] == prompt:
            return self._last[1]
        result, tokenizer = CompletionLogprobs([], [], [], []), self._writer.names.tokenizer
        for token, position, offset in zip(ids, positions, _offsets(tokenizer, ids, text), strict=True):
            shown = None if tokenizer is None else tokenizer.token_text(token).text
            _append(result, self._writer, token, shown, position, offset)
        self._last = prompt, result
        return result


class ChoiceLogprobs:
    """The log probabilities of one choice of a completion as it grows, with the offset of each token in its text."""

    def __init__(self, writer: LogprobWriter) -> None:
        self._writer = writer
        self._offsets = TextOffsets(writer.names.tokenizer)

    def write(self, answer: CompletionOutput) -> CompletionLogprobs:
        """The log probabilities of one output's tokens."""
        result = CompletionLogprobs([], [], [], [])
        for token, position in zip(answer.token_ids, answer.logprobs or (), strict=True):
            text = position[token].decoded_token
            _append(result, self._writer, token, text, position, self._offsets.next)
            self._offsets.add(token, text)
        return result

    def after(self, text: str) -> None:
        """The choice's text begins with the prompt's (echo)."""
        self._offsets.next = len(text)


def joined(first: CompletionLogprobs, second: CompletionLogprobs) -> CompletionLogprobs:
    return CompletionLogprobs(
        first.tokens + second.tokens,
        first.token_logprobs + second.token_logprobs,
        first.top_logprobs + second.top_logprobs,
        first.text_offset + second.text_offset,
    )


def of_prompt(positions: Sequence[Position | None]) -> PromptLogprobs:
    """In the format of vLLM's prompt_logprobs."""
    return [
        None
        if position is None
        else {
            str(token): PromptLogprob(finite(entry.logprob), entry.rank, entry.decoded_token)
            for token, entry in position.items()
        }
        for position in positions
    ]


def _append(
    result: CompletionLogprobs, writer: LogprobWriter, token: int, text: str | None, position: Position | None,
    offset: int,
) -> None:  # fmt: skip
    result.tokens.append(writer.names.name(token, text))
    result.token_logprobs.append(None if position is None else finite(position[token].logprob))
    result.top_logprobs.append(None if position is None else writer.by_name(token, position))
    result.text_offset.append(offset)


def _offsets(tokenizer: Vocabulary | None, ids: Sequence[int], text: str) -> list[int]:
    """The offset of each token in the text, in characters. Special tokens that the text does not show take up none."""
    if tokenizer is None:
        return [0] * len(ids)
    shows_special = tokenizer.decode(ids, skip_special_tokens=False) == text
    detokenizer = IncrementalDetokenizer(tokenizer, (), skip_special_tokens=not shows_special)
    offsets, length = [], 0
    for token in ids:
        offsets.append(length)
        length += len(detokenizer.append((token,)))
    return offsets
