from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from benchmarks.process import processor_seconds
from benchmarks.spoken import Spoken
from benchmarks.transcription import Checked, Speeds, agreeing, quality, speed_rows
from benchmarks.transcription_task import Line, TranscriptionTask, timings
from benchmarks.word_errors import error_rate, errors, missing

TASK = TranscriptionTask("folder", "float32", 2, ["clip"], ["a", "b", "c"], [1, 3], 2)


class Clock:
    """A model that takes 2 s a call and 1 s a recording."""

    version = "1"

    def __init__(self) -> None:
        self.seconds = 0.0
        self.calls: list[Sequence[str]] = []

    def __call__(self) -> float:
        return self.seconds

    def transcribe(self, paths: Sequence[str]) -> list[list[Line]]:
        self.calls.append(paths)
        self.seconds += 2 + len(paths)
        return [[(0.0, 1.0, path)] for path in paths]


def test_a_case_is_timed_when_its_turn_has_come(tmp_path: Path):
    TASK.write(tmp_path / "task.json")
    clock, turns = Clock(), []
    made = timings(clock, TranscriptionTask.read(tmp_path / "task.json"), clock, lambda: turns.append(clock.seconds))
    assert [figures["seconds"] for figures in made] == [3.0, 5.0] * 2
    assert clock.calls == [["clip"], ["a"], ["clip"], ["a", "b", "c"]] * 2
    assert len(turns) == 4


def test_word_errors_are_changed_left_out_and_put_in():
    assert errors(["a", "b", "c"], ["a", "x", "c", "d"]) == 2
    assert errors(["a", "b"], []) == errors([], ["a", "b"]) == 2
    assert error_rate([("One, two!", "one two"), ("Three four", "four")]) == 1 / 4


def test_a_sentence_is_missing_if_most_of_it_is():
    said = ["the cat sat down", "a dog ran home", "the cat sat down"]
    assert missing(said, "The cat sat down. A dog went home. The cat sat down.") == []
    assert missing(said, "The cat sat down. The cat sat down.") == ["a dog ran home"]
    assert missing(said, "A dog ran home. The cat sat down. The cat lay down.") == ["the cat sat down"]


def test_segments_agree_in_text_and_times():
    theirs = [(0.0, 2.0, " One."), (2.0, 4.0, " Two."), (9.0, 9.5, " One.")]
    assert agreeing([(0.0, 2.08, "One."), (2.0, 4.5, " Two."), (5.0, 6.0, " Three.")], theirs) == (1, 0.5)


def test_quality_is_of_clips_and_of_the_long_recording():
    checked = Checked([Spoken(Path("a"), ("one two",), 1.0)], [], Spoken(Path("b"), ("three", "four"), 2.0))
    lines = [[(0.0, 1.0, " One two")], [(0.0, 1.0, " Three"), (1.0, 2.0, " five")]]
    figures = quality(checked, lines, lines)
    assert (figures["word_errors"], figures["word_errors_clips"], figures["word_errors_long"]) == (1 / 4, 0, 1 / 2)
    assert (figures["lost"], figures["segments"], figures["segments_as_reference"]) == (["four"], 3, 3)


def test_ratios_are_those_of_one_round():
    speeds = Speeds(
        {"tessera": [2.0, 8.0, 3.0], "faster-whisper": [1.0, 2.0, 3.0]},
        {"tessera": [1.0] * 3, "faster-whisper": [2.0] * 3},
    )
    first, second = speed_rows(8, speeds)
    assert first.split() == ["8", "tessera", "3.0", "1.00", "2.00x", "of", "faster-whisper", "(1.00-4.00)"]
    assert second.split() == ["8", "faster-whisper", "2.0", "2.00"]


def test_the_processor_s_seconds_are_counted():
    before, until = processor_seconds(os.getpid()), time.process_time() + 0.1
    while time.process_time() < until:
        pass
    assert processor_seconds(os.getpid()) - before == pytest.approx(0.1, abs=0.09)
