"""The media worker's process: what an image may take of it, and what is left of it."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tessera.errors import MediaLimitError, ModelError
from tessera.media.messages import MediaStart
from tessera.media.workers import MediaWorkers
from tests.processor_folders import FOLDERS


def png(height: int, width: int) -> bytes:
    data = io.BytesIO()
    pixels = np.random.default_rng(height).integers(0, 256, (height, width, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(data, "PNG")
    return data.getvalue()


async def test_an_image_that_takes_too_much_ends_only_its_worker(tmp_path: Path) -> None:
    folder = FOLDERS["qwen2_vl"].write(tmp_path)
    data = png(40, 60)
    async with MediaWorkers(MediaStart(str(folder))) as workers:
        with pytest.raises(MediaLimitError, match="needed more memory than its size allows"):
            await workers.process("image", data, {"size": {"shortest_edge": 2**31, "longest_edge": 2**32}})
        assert workers.restarts == 1
        assert (await workers.process("image", data)).num_rows == 40


async def test_a_model_whose_processor_cannot_be_loaded_says_so(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="cannot be loaded"):
        async with MediaWorkers(MediaStart(str(tmp_path))):
            pass
