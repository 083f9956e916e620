"""Tokens and words are timed as a plain reading of the algorithm has it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import pairwise
from statistics import median

import numpy as np
import pytest

from tessera.arrays import Array
from tessera.speech.alignment import token_starts
from tessera.speech.words import words_of


def plainly(attention: Array, positions: int) -> list[int]:
    """token_starts(), an element at a time."""
    heard = attention[:, :, :positions].astype(np.float64)
    heard /= heard.sum(-1, keepdims=True)
    heard = (heard - heard.mean(0)) / heard.std(0)
    tokens, heads, width = heard.shape
    smooth = np.zeros((tokens, width))
    for token, head, place in np.ndindex(heard.shape):
        mirrored = [abs(place + step) for step in range(-3, 4)]
        near = [2 * (width - 1) - other if other >= width else other for other in mirrored]
        smooth[token, place] += median(float(heard[token, head, other]) for other in near) / heads
    best: dict[tuple[int, int], tuple[float, tuple[int, int] | None]] = {}
    for token, place in np.ndindex(smooth.shape):
        ways = [(token - 1, place - 1), (token - 1, place), (token, place - 1)]
        before = min((way for way in ways if way in best), key=lambda way: best[way][0], default=None)
        best[token, place] = (0.0 if before is None else best[before][0]) - float(smooth[token, place]), before
    starts, here = [0] * tokens, (tokens - 1, width - 1)
    while True:
        starts[here[0]] = here[1]
        behind = best[here][1]
        if behind is None:
            return starts
        here = behind


@pytest.mark.parametrize(("tokens", "heads", "positions"), [(1, 1, 5), (7, 3, 30), (12, 2, 41), (9, 1, 6)])
def test_tokens_begin_where_the_cheapest_way_enters_them(tokens: int, heads: int, positions: int) -> None:
    draw = np.random.default_rng(tokens)
    attention = draw.random((tokens, heads, positions + 9)).astype(np.float32)
    attention[:, 0] += 3 * (np.arange(tokens)[:, None] * positions // tokens == np.arange(positions + 9))
    attention /= attention.sum(-1, keepdims=True)
    if tokens == 1:
        assert token_starts(attention, positions).tolist() == [0]
    else:
        assert token_starts(attention, positions).tolist() == plainly(attention, positions)


@pytest.mark.parametrize(
    ("pieces", "language", "words"),
    [
        ([" Hel", "lo", ",", " world", "!"], "en", [" Hello,", " world!"]),
        ([" He", " said", ' "', "no", '"', " -", " twice", "."], "en", [" He", " said", ' "no"', " - twice."]),
        (["日", "本"], "ja", ["日", "本"]),
        ([" ¿", "Qu", "é", "?"], "es", [" ¿Qué?"]),
        ([" ", " "], "en", []),
    ],
)
@pytest.mark.parametrize("broken", [False, True])
def test_marks_belong_to_words_and_characters_stay_whole(
    pieces: list[str], language: str, words: list[str], broken: bool
) -> None:
    """broken: characters that are no ASCII have a token for each byte."""
    tokens: list[bytes] = []
    for piece in pieces:
        data = piece.encode()
        tokens += [data[n : n + 1] for n in range(len(data))] if broken and not piece.isascii() else [data]

    async def decode(places: Sequence[int]) -> str:
        return b"".join(tokens[place] for place in places).decode(errors="replace")

    found = asyncio.run(words_of(range(len(tokens)), language, decode))
    assert [word.text for word in found] == words
    assert all(one.last == two.first for one, two in pairwise(found))
