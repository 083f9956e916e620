"""Labels that stand for possible answers. Each is a single token of the model, so one step gives the probability of all
of them."""

from __future__ import annotations

import asyncio
import string
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import NamedTuple

from tessera.errors import RequestError
from tessera.text import Vocabulary

_LETTERS = string.ascii_uppercase
_LONGEST = 3


class Label(NamedTuple):
    """tokens: those that say it, with and without a space before it."""

    text: str
    tokens: tuple[int, ...]


class Labels:
    """The labels of a model's vocabulary. vocab_size: of the model, which may know fewer tokens than the tokenizer."""

    def __init__(self, vocabulary: Vocabulary, vocab_size: int) -> None:
        self._vocabulary = vocabulary
        self._size = min(vocabulary.vocab_size, vocab_size)
        self._tokens: Mapping[str, Sequence[int]] | None = None
        self._distinct: dict[int, Sequence[Label]] = {}
        """By their number: hundreds of questions share them."""

    async def load(self) -> None:
        """Call it before the others: the first call looks at the whole vocabulary."""
        if self._tokens is None:
            self._tokens = await asyncio.to_thread(self._scan)

    @property
    def _loaded(self) -> Mapping[str, Sequence[int]]:
        """The tokens of each text that may be a label."""
        assert self._tokens is not None
        return self._tokens

    def _scan(self) -> Mapping[str, Sequence[int]]:
        found: dict[str, list[int]] = {}
        for token in range(self._size):
            if token in self._vocabulary.added_token_texts:
                continue
            text = self._vocabulary.token_bytes(token).decode("ascii", errors="replace").removeprefix(" ")
            if len(text) <= _LONGEST and text.isalnum() and text.isascii():
                found.setdefault(text, []).append(token)
        return found

    def matching(self, texts: Sequence[str]) -> Sequence[Label]:
        """A label for each text, whose tokens may also write it in small or capital letters; [] if one has no single
        token."""
        known, labels = self._loaded, []
        for text in texts:
            spellings = dict.fromkeys((text, text.lower(), text.upper()))
            labels.append(Label(text, tuple(token for spelling in spellings for token in known.get(spelling, ()))))
        return labels if all(label.tokens for label in labels) else []

    def numbered(self, count: int, place: str) -> Sequence[Label]:
        """Labels for the levels of a scale: their numbers from 0 where each is a token, or those of distinct()."""
        return self.matching([str(number) for number in range(count)]) or self.distinct(count, place)

    def distinct(self, count: int, place: str) -> Sequence[Label]:
        """Labels for `count` possible answers: letters, or if there are not enough of these, numbers, pairs of letters,
        or letters and digits. place: in the request, for the RequestError that is raised if none of them suffice."""
        if count in self._distinct:
            return self._distinct[count]
        known, most = self._loaded, 0
        for alphabet in _alphabets(count):
            labels = [Label(text, tuple(known[text])) for text in alphabet if text in known][:count]
            if len(labels) == count:
                self._distinct[count] = labels
                return labels
            most = max(most, len(labels))
        raise RequestError(f"{place} must have at most {most} entries for this model's tokenizer.", param=place)


def _alphabets(count: int) -> Iterator[Sequence[str]]:
    yield _LETTERS
    yield [str(number) for number in range(1, count + 1)]
    yield ["".join(pair) for pair in product(_LETTERS, repeat=2)]
    yield (*_LETTERS, *string.ascii_lowercase, *string.digits)
