"""The processor that the file of a tower says is the one that a folder has."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from transformers import AutoTokenizer

from tessera.gguf.vision.model import open_vision_model
from tessera.media.messages import MediaStart
from tessera.media.processor import MediaProcessor
from tessera.media.workers import MediaWorkers
from tests.unit.gguf.towers import TOWERS, both


def images() -> list[Image.Image]:
    draw = np.random.default_rng(0)
    return [Image.fromarray(draw.integers(0, 256, (*size, 3), np.uint8)) for size in ((40, 60), (90, 31), (28, 28))]


@pytest.mark.parametrize("kind", TOWERS)
def test_the_files_make_the_processor_that_a_folder_has(kind: str, tmp_path: Path) -> None:
    text, tower = both(tmp_path, kind)
    expected = MediaProcessor(tmp_path / "processor")
    with open_vision_model(text, tower).processor_folder() as folder:
        vocabulary = AutoTokenizer.from_pretrained(folder).get_vocab()
        processor = MediaProcessor(folder)
    assert not folder.exists()
    assert vocabulary == AutoTokenizer.from_pretrained(tmp_path / "processor").get_vocab()
    assert processor.ready == expected.ready
    for image in images():
        made, same = processor.image(image), expected.image(image)
        assert (made.replacement, made.num_rows) == (same.replacement, same.num_rows)
        assert made.inputs.keys() == same.inputs.keys()
        for name, array in made.inputs.items():
            np.testing.assert_allclose(array, same.inputs[name], atol=1e-6)


async def test_a_worker_reads_the_processor_of_the_files(tmp_path: Path) -> None:
    text, tower = both(tmp_path, "gemma3")
    expected, data = MediaProcessor(tmp_path / "processor"), io.BytesIO()
    images()[0].save(data, "PNG")
    async with MediaWorkers(MediaStart(str(text), str(tower))) as workers:
        assert await workers.ready() == expected.ready
        media = await workers.process("image", data.getvalue())
    same = expected.image(images()[0])
    assert media.replacement == same.replacement
    np.testing.assert_allclose(media.inputs["pixel_values"], same.inputs["pixel_values"], atol=1e-6)
