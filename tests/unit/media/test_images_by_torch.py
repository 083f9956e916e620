"""Images that transformers processes with torch alone: what a worker makes of one without torchvision."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tessera.media.messages import MediaStart
from tessera.media.workers import MediaWorkers
from tests.processor_folders import TORCH_FOLDERS

RECORDED: dict[str, tuple[tuple[int, ...], str, float]] = {
    "gemma4_unified": ((1, 280, 192), "<boi><|image|>", 24981.718992420007),
    "llama4": ((5, 3, 28, 28), "<|image_start|><|patch|>", -6492.622131347656),
    "muse_glimmer": ((216, 96), "<|image_start|><|patch|>", 739.2287391582504),
}
"""Of a kind of processor: the shape of what the tower takes, how the text begins, and the sum of all values. By
transformers with torchvision 0.28 as it is."""


@pytest.mark.parametrize("kind", sorted(RECORDED))
async def test_the_inputs_are_those_of_transformers_with_torchvision(kind: str, tmp_path: Path) -> None:
    shape, begins, total = RECORDED[kind]
    data = io.BytesIO()
    Image.fromarray(np.random.default_rng(7).integers(0, 256, (130, 200, 3), dtype=np.uint8)).save(data, "PNG")
    async with MediaWorkers(MediaStart(str(TORCH_FOLDERS[kind].write(tmp_path)), with_torch=True)) as workers:
        media = await workers.process("image", data.getvalue())
    values = media.inputs["pixel_values"]
    assert (values.shape, media.replacement[: len(begins)]) == (shape, begins)
    np.testing.assert_allclose(values.sum(dtype=np.float64), total, rtol=1e-6)
