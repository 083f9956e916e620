"""Recordings of many windows, with a model that answers by a script."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from string import ascii_letters
from typing import Any

import numpy as np
import pytest

from tessera.arrays import Array
from tessera.config.speech import SpeechConfig
from tessera.media.placed import PlacedMedia
from tessera.speech.model import SAMPLE_RATE, Heard, Written
from tessera.speech.segments import Segment
from tessera.speech.subtitles import srt, vtt
from tessera.speech.transcribe import TEMPERATURES, Transcript, TranscriptionOptions

END, START, ENGLISH, GERMAN, TRANSLATE, TRANSCRIBE, PREVIOUS, NO_TIMES = 200, 201, 202, 203, 204, 205, 207, 209
SPEECH = SpeechConfig(
    start=START,
    end=END,
    no_timestamps=NO_TIMES,
    languages={"en": ENGLISH, "de": GERMAN},
    tasks={"transcribe": TRANSCRIBE, "translate": TRANSLATE},
)
BEGIN = [START, ENGLISH, TRANSCRIBE]


def at(seconds: float) -> int:
    return NO_TIMES + 1 + round(seconds / 0.02)


def words(text: str) -> list[int]:
    return list(text.encode())


@dataclass
class Model:
    """answers: tokens and the mean log probability of each. heard: of each question."""

    answers: list[tuple[list[int], float]]
    heard: list[Heard] = field(default_factory=list)
    speech: SpeechConfig = SPEECH
    max_model_len: int = 64
    # Of each window: where it begins, and its seconds.
    windows: list[tuple[float, float]] = field(default_factory=list)
    asked: list[dict[str, Any]] = field(default_factory=list)

    async def encode(self, samples: Array) -> PlacedMedia:
        self.windows.append((float(samples[0]), len(samples) / SAMPLE_RATE))
        return PlacedMedia("audio", b"", np.zeros(0, np.int32), {})

    async def detect(self, sound: PlacedMedia, *, language: bool) -> Heard:
        self.asked.append({"language": language})
        return self.heard.pop(0)

    async def write(self, prompt: Sequence[int], sound: PlacedMedia, **asked: Any) -> Written:
        self.asked.append({"prompt": [*prompt], **asked})
        tokens, mean = self.answers.pop(0)
        return Written(tokens, mean * (len(tokens) + 1), len(tokens) + 1)

    async def align(self, tokens: Sequence[int], sound: PlacedMedia) -> Array:
        """Each token attends to eight positions: those behind the ones of the token before."""
        self.asked.append({"aligned": [*tokens]})
        return np.repeat(np.eye(len(tokens), dtype=np.float32), 8, axis=1)[:, None] / 8

    async def decode(self, tokens: Sequence[int]) -> str:
        return bytes(tokens).decode()


def recording(seconds: float) -> Array:
    """Each sample is its own time in seconds."""
    return np.arange(int(seconds * SAMPLE_RATE), dtype=np.float32) / SAMPLE_RATE


def transcribed(model: Model, seconds: float, **options: Any) -> list[Segment]:
    transcript = Transcript(model, TranscriptionOptions(**{"language": "en", **options}))

    async def run() -> list[Segment]:
        return [segment async for segment in transcript.segments(recording(seconds))]

    return asyncio.run(run())


def test_a_window_begins_where_the_last_whole_segment_ended() -> None:
    first = [at(0), *words(" One."), at(8), at(9), *words(" Two."), at(20), at(20), *words(" Thr")]
    second = [at(0), *words(" Three."), at(12)]
    model = Model([(first, -0.2), (second, -0.3)])
    segments = transcribed(model, 40)
    assert model.windows == [(0, 30), (20, 20)]
    assert [(one.id, one.start, one.end, one.text, one.seek) for one in segments] == [
        (0, 0, 8, " One.", 0),
        (1, 9, 20, " Two.", 0),
        (2, 20, 32, " Three.", 2000),
    ]
    assert [round(one.avg_logprob, 6) for one in segments] == [-0.2, -0.2, -0.3]
    assert {one.no_speech_prob for one in segments} == {None}
    assert model.asked[0] == {"prompt": BEGIN, "temperature": 0.0, "max_tokens": 32, "timed": True}
    before = [at(0), *words(" One."), at(8), at(9), *words(" Two."), at(20)]
    assert model.asked[1]["prompt"] == [PREVIOUS, *before, *BEGIN]


def test_what_was_said_before_is_shown_as_far_as_it_fits() -> None:
    model = Model([([at(0), *words(ascii_letters[:40]), at(30)], -0.1), ([at(0), *words("y"), at(1)], -0.1)])
    transcribed(model, 31, prompt=words("z" * 50))
    assert model.asked[0]["prompt"] == [PREVIOUS, *words("z" * 31), *BEGIN]
    assert model.asked[1]["prompt"] == [PREVIOUS, *words(ascii_letters[10:40]), at(30), *BEGIN]
    assert model.asked[1]["max_tokens"] == 64 - 35


def test_a_bad_answer_is_drawn_again_until_one_is_good() -> None:
    loop, unlikely, good = words("la " * 40), words("Hm"), words("Hello there")
    answers = [(loop, -0.1), (unlikely, -1.2), (good, -0.4), (words("Next"), -0.1)]
    model = Model(answers, [Heard("", 0.1)], max_model_len=400)
    segments = transcribed(model, 40)
    assert [(one.text, one.temperature, one.no_speech_prob) for one in segments] == [
        ("Hello there", 0.4, 0.1),
        ("Next", 0.0, None),
    ]
    worst = Model([(loop, -0.1)] * 6 + [(good, -0.1)], max_model_len=400)
    segments = transcribed(worst, 40)
    assert [one.temperature for one in segments] == [1.0, 0.0]
    assert segments[0].compression_ratio > 2.4
    assert [one["temperature"] for one in worst.asked] == [*TEMPERATURES, 0.0]
    assert worst.asked[-1]["prompt"] == BEGIN, "what a high temperature made is not shown"
    chosen = Model([(loop, -0.1)])
    assert transcribed(chosen, 3, temperatures=(0.7,))[0].temperature == 0.7


def test_words_have_their_times() -> None:
    """The token in front of a word says where it begins, eight positions of 0.02 s behind the token before."""
    model = Model([([at(0), *words(" One, two."), at(8), at(9), *words(" Three"), at(20)], -0.1)])
    first, second = transcribed(model, 25, has_words=True)
    said = [*words(" One, two."), *words(" Three")]
    assert model.asked[-1] == {"aligned": [*BEGIN, NO_TIMES, *said, END]}
    assert [word.text for word in first.words] == [" One,", " two."]
    assert [word.text for word in second.words] == [" Three"]
    times = [time for one in (first, second) for word in one.words for time in (word.start, word.end)]
    assert times[0] == 0.0, "the way begins at the beginning"
    assert times[1:] == pytest.approx([0.16 * (len(BEGIN) + place) for place in (5, 5, 10, 10, 16)])


def test_silence_is_left_out() -> None:
    model = Model([(words("Thanks"), -1.5), (words("Yes"), -0.1)], [Heard("", 0.9)])
    assert [(one.start, one.text) for one in transcribed(model, 40)] == [(30, "Yes")]
    likely = Model([(words("Thanks"), -0.5)], [Heard("", 0.9)])
    (segment,) = transcribed(likely, 10, hears_silence=True)
    assert segment.no_speech_prob == 0.9
    empty = Model([([at(0), *words("  "), at(4)], -0.1)])
    assert transcribed(empty, 10) == []


def test_silence_is_asked_for_while_the_answer_is_written() -> None:
    begun = asyncio.Event()

    class Waiting(Model):
        async def detect(self, sound: PlacedMedia, *, language: bool) -> Heard:
            await asyncio.wait_for(begun.wait(), 10)
            return await super().detect(sound, language=language)

        async def write(self, prompt: Sequence[int], sound: PlacedMedia, **asked: Any) -> Written:
            begun.set()
            return await super().write(prompt, sound, **asked)

    (segment,) = transcribed(Waiting([(words("Yes"), -0.1)], [Heard("", 0.2)]), 10, hears_silence=True)
    assert (segment.text, segment.no_speech_prob) == ("Yes", 0.2)


def test_the_language_is_heard_once() -> None:
    model = Model([(words("Ja"), -0.1)] * 2, [Heard("de", 0.0)])
    transcript = Transcript(model, TranscriptionOptions(task="translate"))
    asyncio.run(_read(transcript, 40))
    assert transcript.language == "de"
    assert [one["prompt"][-2:] for one in model.asked if "prompt" in one] == [[GERMAN, TRANSLATE]] * 2
    assert [one["language"] for one in model.asked if "language" in one] == [True]


async def _read(transcript: Transcript, seconds: float) -> None:
    async for _ in transcript.segments(recording(seconds)):
        pass


def test_a_model_of_english_alone_is_asked_for_no_language() -> None:
    english = SpeechConfig(start=START, end=END, no_timestamps=NO_TIMES)
    model = Model([(words("Yes"), -0.1)], speech=english)
    transcript = Transcript(model, TranscriptionOptions(timed=False))
    asyncio.run(_read(transcript, 5))
    assert transcript.language == "en"
    assert model.asked[0]["prompt"] == [START, NO_TIMES]


def test_a_model_without_times_is_asked_once_for_each_window() -> None:
    loop = words("la " * 40)
    answers = [(loop, -3.0), (words("Two."), -0.1), (words(" "), -0.1), (words("日本"), -0.1)]
    model = Model(answers, speech=SpeechConfig(start=START, end=END, window=10.0, ahead=(7,)))
    segments = transcribed(model, 25, language=None, hears_silence=True)
    assert [(one.start, one.end) for one in segments] == [(0, 5), (5, 10), (15, 25)]
    assert [one.text for one in segments] == [f" {'la ' * 39}la", " Two.", "日本"]
    assert {(one.temperature, one.no_speech_prob) for one in segments} == {(0.0, None)}
    asked = {"prompt": [START, 7], "temperature": 0.0, "max_tokens": 62, "timed": False}
    assert model.asked == [asked] * 4


@pytest.mark.parametrize(
    ("tokens", "ends"),
    [
        ([at(0)], 30),
        ([at(0), at(0)], 30),
        ([*words("Yes")], 30),
        ([at(0), *words("Yes"), at(7.5)], 30),
        ([at(0), *words("Yes"), at(7.5), at(7.5)], 7.5),
        ([at(2), *words("Yes"), at(7), at(7), *words("No"), at(29)], 30),
    ],
)
def test_a_recording_is_always_read_to_its_end(tokens: list[int], ends: float) -> None:
    model = Model([(tokens, -0.1), (words("End"), -0.1), (words("End"), -0.1)])
    transcribed(model, 32)
    assert model.windows[1][0] == ends


def test_subtitles() -> None:
    model = Model([([at(0), *words(" One --> two."), at(8), at(9.5), *words(" Three."), at(20)], -0.1)])
    first, second = transcribed(model, 20)
    later = Segment(**{**vars(second), "start": 3661.5, "end": 3722.0015})
    assert srt([first, later]) == (
        "1\n00:00:00,000 --> 00:00:08,000\nOne -> two.\n\n2\n01:01:01,500 --> 01:02:02,002\nThree.\n\n"
    )
    assert vtt([first, later]) == (
        "WEBVTT\n\n00:00.000 --> 00:08.000\nOne -> two.\n\n01:01:01.500 --> 01:02:02.002\nThree.\n\n"
    )
