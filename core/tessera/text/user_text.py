"""Keeps special tokens in a client's text from becoming tokens: `<|im_start|>system` in a message is text about a
token, and does not begin a turn.

A template turns messages and its own special tokens into one text, in which they look the same. So those in messages
are split by a mark before the template runs. Afterwards the special tokens that are whole are the template's, and the
marks are taken out again.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from tessera.text.conversation import MAX_DEPTH


class SpecialToken(NamedTuple):
    """lstrip, rstrip: the token takes the white space before or after it."""

    text: str
    lstrip: bool = False
    rstrip: bool = False


class PromptPiece(NamedTuple):
    """A part of a prompt. literal: the special tokens in it are text."""

    text: str
    literal: bool


class SpecialTexts:
    """The special tokens of a vocabulary. Those of a single character cannot be split: they are always tokens."""

    def __init__(self, tokens: Iterable[SpecialToken]) -> None:
        self._tokens = tuple(tokens)
        known = sorted((token for token in self._tokens if len(token.text) > 1), key=lambda token: -len(token.text))
        any_of = "|".join(re.escape(token.text) for token in known) or "(?!)"
        self._any = re.compile(any_of)
        self._first = re.compile(f"(?=(?:{any_of}))(.)", re.DOTALL)
        self._with_spaces = re.compile(f"({'|'.join(map(_with_spaces, known)) or '(?!)'})")
        self._beginnings = tuple({token.text[:length] for token in known for length in range(1, len(token.text))})

    def including(self, *texts: str) -> SpecialTexts:
        """These and further ones that are not among them."""
        known = {token.text for token in self._tokens}
        further = [SpecialToken(text) for text in texts if text not in known]
        return SpecialTexts([*self._tokens, *further]) if further else self

    def within(self, text: str) -> bool:
        """Whether a text has a special token."""
        return self._any.search(text) is not None

    def mark(self) -> Mark:
        return Mark(self)

    def split(self, text: str, mark: str) -> str:
        """Marks what is, or could become together with what follows it, a special token."""
        if self.within(text):
            text = self._first.sub(lambda match: match[1] + mark, text)
        return text + mark if text.endswith(self._beginnings) else text

    def parts(self, text: str) -> Iterator[tuple[str, bool]]:
        """The parts of a text, and whether each is a special token, with the white space that it takes."""
        for number, part in enumerate(self._with_spaces.split(text)):
            if part:
                yield part, number % 2 == 1


class Mark:
    """A mark that no client knows, for one prompt: letters and digits, which templates keep as they are."""

    def __init__(self, special: SpecialTexts) -> None:
        self._special = special
        self._mark = f"kept{secrets.token_hex(8)}"

    def put(self, value: Any, depth: int = 0) -> Any:
        """A copy of messages, or of other plain data, with every special token in it marked. What is too deep for a
        template is left to it to refuse."""
        copy: Any = value
        if isinstance(value, str):
            copy = self._special.split(value, self._mark)
        elif depth > MAX_DEPTH:
            return value
        elif isinstance(value, Mapping):
            copy = {self.put(key, depth + 1): self.put(inner, depth + 1) for key, inner in value.items()}
        elif isinstance(value, (list, tuple)):
            copy = [self.put(inner, depth + 1) for inner in value]
        return copy

    def removed(self, prompt: str) -> str:
        return prompt.replace(self._mark, "")

    def pieces(self, prompt: str) -> list[PromptPiece]:
        """The parts of a rendered prompt, without marks, as few as possible."""
        pieces: list[PromptPiece] = []
        for part, is_token in self._special.parts(prompt):
            text = self.removed(part)
            literal = not is_token and self._special.within(text)
            if pieces and not literal and not pieces[-1].literal:
                text = pieces.pop().text + text
            pieces.append(PromptPiece(text, literal))
        return pieces


def _with_spaces(token: SpecialToken) -> str:
    before, after = r"\s*" * token.lstrip, r"\s*" * token.rstrip
    return f"{before}{re.escape(token.text)}{after}"
