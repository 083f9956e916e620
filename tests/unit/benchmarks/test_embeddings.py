from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle
from pathlib import Path

import pytest
from benchmarks.embedding_task import EmbeddingTask, rates
from benchmarks.embeddings import least_cosine, ratio, row, text_of

TASK = EmbeddingTask(
    "folder", "file", "float32", 2, {3: ["a", "b", "c", "d", "e"], 9: ["f", "g", "h", "i", "j"]}, [1, 2], 2, 4.0
)


class Clock:
    """An embedder that takes 1 s a call and 1 s a text."""

    version = "1"

    def __init__(self) -> None:
        self.seconds = 0.0
        self.calls: list[Sequence[str]] = []

    def __call__(self) -> float:
        return self.seconds

    def embed(self, texts: Sequence[str]) -> list[list[float]]:
        self.calls.append(texts)
        self.seconds += 1 + len(texts)
        return [[1.0]] * len(texts)


def test_a_task_survives_its_file(tmp_path: Path):
    TASK.write(tmp_path / "task.json")
    assert EmbeddingTask.read(tmp_path / "task.json") == TASK


def test_calls_are_of_one_size():
    assert TASK.calls(3, 2) == [["a", "b"], ["c", "d"]]
    assert TASK.calls(9, 1) == [["f"], ["g"], ["h"], ["i"], ["j"]]


def test_a_rate_is_that_of_whole_calls_after_the_first():
    clock, turns = Clock(), []
    found = list(rates(clock, TASK, clock, lambda: turns.append(clock.seconds)))
    assert found == [2 / 4, 4 / 6] * 4  # calls of 2 s and of 3 s until 4 s are over
    assert len(turns) == TASK.rounds * len(TASK.cases)
    assert clock.calls[:3] == [["a"], ["b"], ["c"]]
    assert clock.calls[3:6] == [["a", "b"], ["c", "d"], ["a", "b"]]


def test_texts_have_exactly_as_many_tokens():
    words = cycle(["one", "three!!!", "two"])

    def count(text: str) -> int:  # a token for each word and each mark, and two around the text
        return 2 + len(text.split()) + text.count("!")

    assert text_of(words, count, 8) == "one three!!! two"
    assert text_of(words, count, 5) == "one two one"


def test_the_least_cosine_is_over_all_texts():
    ours = {3: [[1.0, 0.0], [0.0, 1.0]], 9: [[1.0, 0.0]]}
    assert least_cosine(ours, ours) == 1.0
    assert least_cosine(ours, {9: [[3.0, 4.0]], 3: [[2.0, 0.0], [0.0, 1.0]]}) == pytest.approx(0.6)


def test_ratios_are_those_of_one_round():
    assert ratio([2.0, 8.0, 3.0], [1.0, 2.0, 3.0]) == (2.0, 1.0, 4.0)
    lines = row(16, 1, {"tessera": [2.0, 8.0, 3.0], "openvino": [1.0, 2.0, 3.0]}).splitlines()
    assert lines[0].split() == ["16", "1", "tessera", "3.0"]
    assert lines[1].split() == ["16", "1", "openvino", "2.0", "2.00x", "(1.00-4.00)"]
