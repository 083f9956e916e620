from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.image_task import ImageTask, first_tokens
from benchmarks.images import SMALL, picture, report, write_model
from benchmarks.peers.tessera_images import _gaps
from PIL import Image
from tokenizers import Tokenizer

TASK = ImageTask(
    model="folder", dtype="float32", threads=2, images=list("abcdefg"), rounds=3, step_tokens=64, chats=2, arrivals=2,
    interval=0.5,
)  # fmt: skip


class Clock:
    """Reads an image in 2 s more than the one before."""

    version = "1"

    def __init__(self) -> None:
        self.seconds, self.images = 0.0, ""

    def __call__(self) -> float:
        return self.seconds

    def answer(self, image: str) -> None:
        self.images += image
        self.seconds += 2 * len(self.images)


def test_a_task_survives_its_file_and_shows_each_image_in_one_place(tmp_path: Path) -> None:
    TASK.write(tmp_path / "task.json")
    assert ImageTask.read(tmp_path / "task.json") == TASK
    assert (TASK.timed, TASK.arriving) == (["b", "c", "d"], ["e", "f", "g"])


def test_each_round_is_timed_alone() -> None:
    clock, turns = Clock(), []
    found = list(first_tokens(clock, TASK, clock, lambda: turns.append(clock.seconds)))
    assert (found, clock.images) == ([{"seconds": seconds} for seconds in (2.0, 4.0, 6.0)], "bcd")
    assert turns == [0.0, 2.0, 6.0]


def test_gaps_are_those_that_end_in_the_time() -> None:
    assert list(_gaps([0.0, 1.0, 3.0, 6.0, 10.0], 2.0, 6.0)) == [2.0, 3.0]


def test_a_report_compares_chats_beside_pictures_with_chats_alone() -> None:
    record = {
        "machine": "a machine", "threads": 2, "date": "today", "versions": {"tessera": "1", "transformers": "2"},
        "layers": 3, "pixels": 28, "dtype": "float32", "step_tokens": 64, "chats": 2, "interval_s": 0.5, "busy": 0.0,
        "first_token_s": {"tessera": [1.0, 2.0], "transformers": [3.0, 3.0]},
        "beside": {"alone": [0.1] * 20, "beside": [0.1] * 10 + [0.2] * 10, "answers": [1.0, 2.0], "encodings": [1, 0]},
    }  # fmt: skip
    lines = "\n".join(report(record))
    assert "tessera is 2.25 times as fast as transformers (1.50-3.00)" in lines
    assert "95th percentile while 2 pictures arrive, over alone: 2.00" in lines
    assert lines.endswith("encodings of a picture and of the same again: [1, 0]")
    assert "preliminary" in "\n".join(report({**record, "busy": 0.5}))


def test_a_model_has_a_token_for_each_number_and_pictures_have_their_size(tmp_path: Path) -> None:
    write_model(tmp_path / "model", SMALL, 1)
    tokenizer = Tokenizer.from_file(str(tmp_path / "model" / "tokenizer.json"))
    assert tokenizer.encode("<|image_pad|>").ids == [151655]
    assert len(tokenizer.decode([151642])) in (3, 4)
    with (
        Image.open(picture(tmp_path / "a.png", 50, 1)) as first,
        Image.open(picture(tmp_path / "b.png", 50, 2)) as other,
    ):
        assert first.size == (50, 50)
        assert first.tobytes() != other.tobytes()


@pytest.mark.parametrize("layers", [1, 2])
def test_as_many_layers_as_asked_for(tmp_path: Path, layers: int) -> None:
    write_model(tmp_path / "model", SMALL, layers)
    assert f'"num_hidden_layers": {layers}' in (tmp_path / "model" / "config.json").read_text()
