"""What a model takes of a sound, against transformers' processor called as a whole on text and sound."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tessera.arrays import Array
from tessera.errors import ModelError, RequestError
from tessera.media.messages import MediaStart
from tessera.media.placement import placed
from tessera.media.processor import MediaProcessor
from tessera.media.sound import wav_file
from tessera.media.workers import MediaWorkers
from tests.processor_folders import FOLDERS, SOUND_FOLDERS


@pytest.fixture(autouse=True)
def _one_thread() -> Any:
    """As a worker's: sums of more threads differ in the last bit."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def sounds() -> list[Array]:
    random = np.random.default_rng(7)
    return [(random.standard_normal(size) / 10).astype(np.float32) for size in (9_000, 20_001, 31_999)]


@pytest.mark.parametrize("kind", sorted(SOUND_FOLDERS))
def test_each_sound_alone_is_what_the_whole_processor_makes_of_it(kind: str, tmp_path: Path) -> None:
    known = SOUND_FOLDERS[kind]
    processor = MediaProcessor(known.write(tmp_path), modalities=("audio",))
    reference: Any = processor._processor
    places = processor.ready.places["audio"]
    assert (places.placeholder, places.rate) == (known.placeholder, 16_000)
    assert places.feature_ids == (reference.tokenizer.convert_tokens_to_ids(known.feature),)
    for samples in sounds():
        media = processor.sound(samples)
        expected = reference(audio=[samples], text=[f"a {known.placeholder} b"], return_tensors="pt")
        ids = reference.tokenizer(f"a {media.replacement} b")["input_ids"]
        assert ids == expected["input_ids"][0].tolist()
        assert media.num_rows == np.isin(ids, places.feature_ids).sum() > 0
        assert "input_features" in media.inputs
        for name, array in media.inputs.items():
            np.testing.assert_array_equal(array, expected[name].numpy(), strict=True)


async def test_the_process_makes_what_the_processor_makes_here(tmp_path: Path) -> None:
    folder = SOUND_FOLDERS["moss"].write(tmp_path)
    here = MediaProcessor(folder, modalities=("audio",))
    async with MediaWorkers(MediaStart(str(folder), modalities=("audio",))) as workers:
        assert await workers.ready() == here.ready
        for samples in sounds():
            media, sent = here.sound(samples), await workers.process("audio", wav_file(samples, 16_000))
            assert (sent.digest, sent.replacement, sent.num_rows) == (media.digest, media.replacement, media.num_rows)
        with pytest.raises(RequestError, match="colour"):
            await workers.process("audio", wav_file(samples, 16_000), {"colour": 1})


def test_a_processor_of_both_takes_both(tmp_path: Path) -> None:
    processor = MediaProcessor(SOUND_FOLDERS["qwen2_5_omni"].write(tmp_path), modalities=("image", "audio"))
    assert processor.ready.placeholders == {"image": "<|IMAGE|>", "audio": "<|AUDIO|>"}
    image, sound = processor.image(Image.new("RGB", (40, 60))), processor.sound(sounds()[0])
    assert set(image.inputs) == {"pixel_values", "image_grid_thw"}
    assert set(sound.inputs) == {"input_features", "feature_attention_mask"}
    text = f"{image.replacement}{sound.replacement}{image.replacement}"
    ids = processor._processor.tokenizer(text)["input_ids"]
    found = placed(ids, [image, sound, image], processor.ready)
    assert [one.modality for one in found] == ["image", "audio", "image"]
    assert sum(one.places.size for one in found) == len(ids)


def test_a_sound_that_the_processor_would_cut_is_refused(tmp_path: Path) -> None:
    for kind, seconds in (("qwen2_audio", 2), ("audioflamingo3", 8)):
        processor = MediaProcessor(SOUND_FOLDERS[kind].write(tmp_path / kind), modalities=("audio",))
        processor.sound(np.zeros(seconds * 16_000, np.float32))
        with pytest.raises(RequestError, match=rf"has {seconds + 1}\.0 seconds, and this model takes {seconds};"):
            processor.sound(np.zeros((seconds + 1) * 16_000, np.float32))


def test_a_processor_without_a_way_to_sounds_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="LlavaProcessor of the installed transformers names no text") as caught:
        MediaProcessor(FOLDERS["llava"].write(tmp_path), modalities=("audio",))
    assert "\n" not in caught.value.message
