"""Segments of a transcript, and how the tokens of a window become some."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from tessera.config.speech import SpeechConfig
from tessera.speech.words import Word


@dataclass(frozen=True)
class TokenSpan:
    """Tokens of a window, times among them, with where they are in the window."""

    tokens: tuple[int, ...]
    # Both in seconds from the beginning of the window.
    start: float
    end: float


@dataclass(frozen=True)
class Segment:
    """A part of a transcript, with OpenAI's fields."""

    # From 0 on.
    id: int
    # Where the window begins that it is of, in hundredths of a second.
    seek: int
    # In seconds from the beginning of the recording.
    start: float
    end: float
    text: str
    # Times among them.
    tokens: Sequence[int]
    # The one that the window's answer was drawn with.
    temperature: float
    # Of the tokens of the window's answer, natural.
    avg_logprob: float
    # Bytes of the window's text for each byte that zlib makes of it: large where it repeats itself.
    compression_ratio: float
    # The probability that nobody speaks in the window; None: unknown.
    no_speech_prob: float | None
    # Those of its text, if they were wanted.
    words: Sequence[Word] = ()


def spans_of(tokens: Sequence[int], speech: SpeechConfig, seconds: float) -> tuple[list[TokenSpan], float]:
    """The spans of a window's answer, and how far it got, in seconds. seconds: of the window that are in the recording.

    As openai-whisper's transcribe(): texts stand between pairs of times. What follows the last pair is left for the
    next window, which begins there, unless a time alone says that nothing follows.
    """
    timed = [token >= speech.first_time for token in tokens]
    borders = [index + 1 for index, (one, next_one) in enumerate(pairwise(timed)) if one and next_one]
    ends_alone = timed[-2:] == [False, True]
    if not borders:
        times = [token for token in tokens if token > speech.first_time]
        end = _seconds(times[-1], speech) if times else seconds
        return [TokenSpan(tuple(tokens), 0.0, min(end, seconds))], seconds
    if ends_alone:
        borders.append(len(tokens))
    spans = []
    for first, last in pairwise([0, *borders]):
        own = tuple(tokens[first:last])
        start = _seconds(own[0], speech) if timed[first] else 0.0
        end = _seconds(own[-1], speech) if timed[last - 1] else seconds
        spans.append(TokenSpan(own, start, end))
    if ends_alone:
        return spans, seconds
    return spans, _seconds(tokens[borders[-1] - 1], speech)


def texts_of(tokens: Sequence[int], speech: SpeechConfig) -> list[int]:
    """The tokens that are text."""
    return [token for token in tokens if token < speech.end]


def _seconds(token: int, speech: SpeechConfig) -> float:
    return (token - speech.first_time) * speech.resolution
