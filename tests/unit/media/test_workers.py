"""The media worker's process: the same as in this process, and within limits."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tessera.errors import MediaLimitError, ModelError, RequestError
from tessera.media.image import read_image
from tessera.media.messages import MAX_PIXELS, MediaStart
from tessera.media.processor import MediaProcessor
from tessera.media.workers import MediaWorkers
from tests.processor_folders import FOLDERS


def png(height: int, width: int) -> bytes:
    data = io.BytesIO()
    pixels = np.random.default_rng(height).integers(0, 256, (height, width, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(data, "PNG")
    return data.getvalue()


async def test_the_process_makes_what_the_processor_makes_here(tmp_path: Path) -> None:
    folder = FOLDERS["qwen2_vl"].write(tmp_path)
    here = MediaProcessor(folder)
    async with MediaWorkers(MediaStart(str(folder), max_pixels=10_000)) as workers:
        assert await workers.ready() == here.ready
        for options in ({}, {"size": {"shortest_edge": 256, "longest_edge": 512}}):
            data = png(40, 60)
            media = await workers.image(data, options)
            expected = here.image(read_image(data, MAX_PIXELS), options)
            assert (media.digest, media.replacement, media.num_rows) == (
                expected.digest, expected.replacement, expected.num_rows,
            )  # fmt: skip
            for name, array in expected.inputs.items():
                np.testing.assert_array_equal(media.inputs[name], array, strict=True)
        for sent, options, message in (
            (b"<svg/>", {}, "no kind that is read here"),
            (png(101, 100), {}, "more than 10000 pixels"),
            (data, {"size": object()}, "no JSON"),
            (data, {"colour": 1}, "does not take"),
        ):
            with pytest.raises(RequestError, match=message):
                await workers.image(sent, options)
        assert workers.restarts == 0


async def test_an_image_that_takes_too_much_ends_only_its_worker(tmp_path: Path) -> None:
    folder = FOLDERS["qwen2_vl"].write(tmp_path)
    data = png(40, 60)
    async with MediaWorkers(MediaStart(str(folder))) as workers:
        with pytest.raises(MediaLimitError, match="needed more memory than its size allows"):
            await workers.image(data, {"size": {"shortest_edge": 2**31, "longest_edge": 2**32}})
        assert workers.restarts == 1
        assert (await workers.image(data)).num_rows == 40


async def test_a_model_whose_processor_cannot_be_loaded_says_so(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="cannot be loaded"):
        async with MediaWorkers(MediaStart(str(tmp_path))):
            pass
