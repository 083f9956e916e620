"""Words of a transcript against those that were said: the least number of words to change, to leave out and to put in,
as the edit distance counts them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

_WORD = re.compile(r"[a-z0-9']+")


def words(text: str) -> list[str]:
    """Lower case, without punctuation, British spellings as they are."""
    return _WORD.findall(text.lower())


def errors(spoken: Sequence[str], written: Sequence[str]) -> int:
    """The edit distance between words."""
    return int(_table(spoken, written)[-1, -1])


def error_rate(pairs: Iterable[tuple[str, str]]) -> float:
    """Of all texts together, each with its transcript: errors for each word that was said."""
    both = [(words(said), words(written)) for said, written in pairs]
    return sum(errors(said, written) for said, written in both) / sum(len(said) for said, _ in both)


def missing(sentences: Sequence[str], written: str) -> list[str]:
    """The sentences of which less than half the words stand in the transcript at their place, in the best alignment of
    all sentences in order with the whole transcript."""
    split = [words(sentence) for sentence in sentences]
    kept = _matches([word for sentence in split for word in sentence], words(written))
    lost, first = [], 0
    for sentence, own in zip(sentences, split, strict=True):
        if sum(kept[first : first + len(own)]) * 2 < len(own):
            lost.append(sentence)
        first += len(own)
    return lost


def _table(spoken: Sequence[str], written: Sequence[str]) -> npt.NDArray[np.int32]:
    """[spoken + 1, written + 1]: the distance between the first words of each."""
    numbers = {word: number for number, word in enumerate({*spoken, *written})}
    columns = np.array([numbers[word] for word in written], np.int64)
    steps = np.arange(len(written) + 1, dtype=np.int32)
    table = np.empty((len(spoken) + 1, len(written) + 1), np.int32)
    table[0] = steps
    for row, word in enumerate(spoken, 1):
        above = table[row - 1]
        best = above + 1
        np.minimum(best[1:], above[:-1] + (columns != numbers[word]), out=best[1:])
        table[row] = np.minimum.accumulate(best - steps) + steps  # words that were put in, one after the other
    return table


def _matches(spoken: Sequence[str], written: Sequence[str]) -> list[bool]:
    """For each word that was said, whether it stands in the transcript at its place."""
    table = _table(spoken, written)
    kept, row, column = [False] * len(spoken), len(spoken), len(written)
    while row and column:
        here = table[row, column]
        same = spoken[row - 1] == written[column - 1]
        if here == table[row - 1, column - 1] + (not same):
            row, column = row - 1, column - 1
            kept[row] = same
        elif here == table[row - 1, column] + 1:
            row -= 1
        else:
            column -= 1
    return kept
