"""Log probabilities in OpenAI's formats, and those of prompts in vLLM's."""

from __future__ import annotations

import codecs
from collections.abc import Mapping, Sequence

from tessera.request import CompletionOutput, Logprob
from tessera.server.openai.protocol import (
    ChatLogprobs,
    CompletionLogprobs,
    PromptLogprob,
    PromptLogprobs,
    TokenLogprob,
    TopLogprob,
)
from tessera.text import IncrementalDetokenizer, Vocabulary

# JSON has no infinity; OpenAI returns this number for an impossible token.
LOWEST = -9999.0
_PART_OF_A_CHARACTER = "\ufffd"

Position = Mapping[int, Logprob]


class TokenNames:
    """How tokens are shown: as their text, or as token_id:5 if the request asks for that or there is no tokenizer."""

    def __init__(self, tokenizer: Vocabulary | None, *, as_ids: bool = False) -> None:
        self.tokenizer = tokenizer
        self._as_ids = as_ids

    def name(self, token: int, text: str | None) -> str:
        return f"token_id:{token}" if self._as_ids or text is None else text

    def utf8(self, token: int, text: str | None) -> bytes:
        return self.name(token, text).encode() if self.tokenizer is None else self.tokenizer.token_bytes(token)


class LogprobWriter:
    """Formats log probabilities. alternatives: how many of the most likely tokens are shown at each position, or which
    tokens."""

    def __init__(self, names: TokenNames, alternatives: int | Sequence[int]) -> None:
        self.names = names
        self._alternatives = alternatives
        self._shown: dict[tuple[int, str | None], tuple[str, list[int]]] = {}
        """The name and the bytes of each token so far: alternatives come again and again."""

    def chat(self, answer: CompletionOutput) -> ChatLogprobs:
        """The log probabilities of one output's tokens."""
        positions = zip(answer.token_ids, answer.logprobs or (), strict=True)
        return ChatLogprobs([self._position(token, position) for token, position in positions])

    def best(self, position: Position) -> list[tuple[int, Logprob]]:
        """The most likely tokens, whether or not the chosen one is among them; or those that were asked for."""
        if not isinstance(self._alternatives, int):
            return [(token, position[token]) for token in self._alternatives if token in position]
        return sorted(position.items(), key=lambda item: -item[1].logprob)[: self._alternatives]

    def by_name(self, token: int, position: Position) -> dict[str, float]:
        """The most likely tokens and the chosen one. Of several tokens with the same text, the most likely is shown."""
        shown: dict[str, float] = {}
        for other, entry in (*self.best(position), (token, position[token])):
            shown.setdefault(self.names.name(other, entry.decoded_token), _finite(entry.logprob))
        return shown

    def _position(self, token: int, position: Position) -> TokenLogprob:
        alternatives, best = self.best(position), []
        if not isinstance(self._alternatives, int) and token not in self._alternatives:
            alternatives.append((token, position[token]))  # a client that names tokens may read the chosen one there
        for other, entry in alternatives:
            name, utf8 = self._spelled(other, entry.decoded_token)
            best.append(TopLogprob(name, _finite(entry.logprob), utf8))
        chosen = position[token]
        name, utf8 = self._spelled(token, chosen.decoded_token)
        return TokenLogprob(name, _finite(chosen.logprob), utf8, best)

    def _spelled(self, token: int, text: str | None) -> tuple[str, list[int]]:
        found = self._shown.get((token, text))
        if found is None:
            found = self._shown[token, text] = self.names.name(token, text), list(self.names.utf8(token, text))
        return found


class EchoedLogprobs:
    """The log probabilities of prompts, for choices whose text begins with the prompt (echo). All choices of a prompt
    have the same, which are made once if they come one after the other."""

    def __init__(self, writer: LogprobWriter) -> None:
        self._writer = writer
        self._last: tuple[int, CompletionLogprobs] | None = None

    def of(
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


class TextOffsets:
    """Where tokens begin in the text that they make up, in characters. next: where the next one begins."""

    def __init__(self, tokenizer: Vocabulary | None) -> None:
        self.next = 0
        self._tokenizer = tokenizer
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def add(self, token: int, text: str | None) -> None:
        """text: of the token alone. If several tokens make up one character, the last of them adds it."""
        pending = bool(self._utf8.getstate()[0])
        if self._tokenizer is None or text is None or not (pending or _PART_OF_A_CHARACTER in text):
            self.next += len(text or "")
        else:
            self.next += len(self._utf8.decode(self._tokenizer.token_bytes(token)))


class ChoiceLogprobs:
    """The log probabilities of one choice of a completion as it grows, with the offset of each token in its text."""

    def __init__(self, writer: LogprobWriter) -> None:
        self._writer = writer
        self._offsets = TextOffsets(writer.names.tokenizer)

    def of(self, answer: CompletionOutput) -> CompletionLogprobs:
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
            str(token): PromptLogprob(_finite(entry.logprob), entry.rank, entry.decoded_token)
            for token, entry in position.items()
        }
        for position in positions
    ]


def _append(
    result: CompletionLogprobs, writer: LogprobWriter, token: int, text: str | None, position: Position | None,
    offset: int,
) -> None:  # fmt: skip
    result.tokens.append(writer.names.name(token, text))
    result.token_logprobs.append(None if position is None else _finite(position[token].logprob))
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


def _finite(logprob: float) -> float:
    return max(LOWEST, logprob)
