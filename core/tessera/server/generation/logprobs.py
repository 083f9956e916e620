"""The log probabilities of an answer's tokens, with their names and their places in its text."""

from __future__ import annotations

import codecs
from collections.abc import Mapping, Sequence

import msgspec

from tessera.request import CompletionOutput, Logprob
from tessera.text import Vocabulary

# JSON has no infinity; OpenAI returns this number for an impossible token.
LOWEST = -9999.0
_PART_OF_A_CHARACTER = "\ufffd"

Position = Mapping[int, Logprob]
"""The log probabilities at one place of an answer, by token id: of the token there and of alternatives."""


class TopLogprob(msgspec.Struct, gc=False):
    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(msgspec.Struct):
    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


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
        self._spellings: dict[tuple[int, str | None], tuple[str, list[int]]] = {}
        """The name and the bytes of each token so far: alternatives come again and again."""

    def tokens(self, answer: CompletionOutput) -> list[TokenLogprob]:
        """The log probabilities of one output's tokens."""
        positions = zip(answer.token_ids, answer.logprobs or (), strict=True)
        return [self._position(token, position) for token, position in positions]

    def best(self, position: Position) -> list[tuple[int, Logprob]]:
        """The most likely tokens, whether or not the chosen one is among them; or those that were asked for."""
        if not isinstance(self._alternatives, int):
            return [(token, position[token]) for token in self._alternatives if token in position]
        return sorted(position.items(), key=lambda item: -item[1].logprob)[: self._alternatives]

    def by_name(self, token: int, position: Position) -> dict[str, float]:
        """The most likely tokens and the chosen one. Of several tokens with the same text, the most likely is shown."""
        shown: dict[str, float] = {}
        for other, entry in (*self.best(position), (token, position[token])):
            shown.setdefault(self.names.name(other, entry.decoded_token), finite(entry.logprob))
        return shown

    def _position(self, token: int, position: Position) -> TokenLogprob:
        alternatives, best = self.best(position), []
        if not isinstance(self._alternatives, int) and token not in self._alternatives:
            alternatives.append((token, position[token]))  # a client that names tokens may read the chosen one there
        for other, entry in alternatives:
            name, utf8 = self._spelled(other, entry.decoded_token)
            best.append(TopLogprob(name, finite(entry.logprob), utf8))
        chosen = position[token]
        name, utf8 = self._spelled(token, chosen.decoded_token)
        return TokenLogprob(name, finite(chosen.logprob), utf8, best)

    def _spelled(self, token: int, text: str | None) -> tuple[str, list[int]]:
        found = self._spellings.get((token, text))
        if found is None:
            found = self._spellings[token, text] = self.names.name(token, text), list(self.names.utf8(token, text))
        return found


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


def finite(logprob: float) -> float:
    return max(LOWEST, logprob)
