"""What a model takes of an image, against transformers' processor called as a whole on text and images."""

from __future__ import annotations

import io
import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tessera.arrays import decoder, encoder
from tessera.errors import ModelError, RequestError
from tessera.media.image import read_image
from tessera.media.item import ProcessedMedia, digest_of, input_bytes
from tessera.media.messages import MAX_PIXELS, MediaStart
from tessera.media.placement import replacements_of
from tessera.media.processor import MediaProcessor
from tessera.media.workers import MediaWorkers
from tests.processor_folders import FOLDERS

KINDS = sorted(FOLDERS)


def images() -> list[Image.Image]:
    random = np.random.default_rng(7)
    sizes = ((40, 60), (90, 31), (28, 28))
    return [Image.fromarray(random.integers(0, 256, (*size, 3), dtype=np.uint8)) for size in sizes]


def whole(processor: Any, text: str, pictures: list[Image.Image]) -> dict[str, np.ndarray]:
    return dict(processor(images=pictures, text=[text], return_tensors="np"))


@pytest.mark.parametrize("kind", KINDS)
def test_each_image_alone_is_what_the_whole_processor_makes_of_it(kind: str, tmp_path: Path) -> None:
    known = FOLDERS[kind]
    processor = MediaProcessor(known.write(tmp_path))
    reference: Any = processor._processor
    tokenizer = reference.tokenizer
    places = processor.ready.places["image"]
    assert places.placeholder == known.placeholder
    features = tokenizer.convert_tokens_to_ids([known.feature, *known.marks])
    assert list(processor.ready.places["image"].feature_ids) == features
    pictures = images()
    done = [processor.image(image) for image in pictures]
    for image, media in zip(pictures, done, strict=True):
        expected = whole(reference, f"a {known.placeholder} b", [image])
        ids = tokenizer(f"a {places.with_number(media.replacement, 0)} b")["input_ids"]
        assert ids == expected["input_ids"][0].tolist()
        assert media.num_rows == np.isin(ids, processor.ready.places["image"].feature_ids).sum() > 0
        assert "pixel_values" in media.inputs
        for name, array in media.inputs.items():
            np.testing.assert_array_equal(array, expected[name], strict=True)
    together = whole(reference, f"a {known.placeholder} b {known.placeholder}{known.placeholder}", pictures)
    ids = tokenizer("a {} b {}{}".format(*replacements_of(done, processor.ready)["image"]))["input_ids"]
    assert ids == together["input_ids"][0].tolist()
    if known.joins:
        for name in done[0].inputs:
            joined = np.concatenate([media.inputs[name] for media in done])
            np.testing.assert_array_equal(joined, together[name], strict=True)
    assert len({media.digest for media in done}) == 3
    assert processor.image(pictures[0]).digest == done[0].digest


def png(image: Image.Image) -> bytes:
    data = io.BytesIO()
    image.save(data, "PNG")
    return data.getvalue()


async def test_the_process_makes_what_the_processor_makes_here(tmp_path: Path) -> None:
    folder = FOLDERS["qwen2_vl"].write(tmp_path)
    here = MediaProcessor(folder)
    async with MediaWorkers(MediaStart(str(folder), max_pixels=10_000)) as workers:
        assert await workers.ready() == here.ready
        for options in ({}, {"size": {"shortest_edge": 256, "longest_edge": 512}}):
            data = png(images()[0])
            media = await workers.process("image", data, options)
            expected = here.image(read_image(data, MAX_PIXELS), options)
            assert (media.digest, media.replacement, media.num_rows) == (
                expected.digest, expected.replacement, expected.num_rows,
            )  # fmt: skip
            for name, array in expected.inputs.items():
                np.testing.assert_array_equal(media.inputs[name], array, strict=True)
        for sent, options, message in (
            (b"<svg/>", {}, "of a kind that is not read here"),
            (png(Image.new("RGB", (101, 100))), {}, "more than 10000 pixels"),
            (data, {"size": object()}, "no JSON"),
            (data, {"colour": 1}, "does not take"),
        ):
            with pytest.raises(RequestError, match=message):
                await workers.process("image", sent, options)
        assert workers.restarts == 0


@pytest.mark.parametrize("kind", ["llava", "idefics3", "gemma3"])
def test_the_processor_is_the_one_that_autoprocessor_chooses(kind: str, tmp_path: Path) -> None:
    from transformers import AutoProcessor

    folder = FOLDERS[kind].write(tmp_path)
    chosen, ours = AutoProcessor.from_pretrained(folder, backend="pil"), MediaProcessor(folder)
    assert type(ours._processor).__name__ == type(chosen).__name__
    image = images()[0]
    expected = whole(chosen, ours.ready.places["image"].placeholder, [image])
    np.testing.assert_array_equal(ours.image(image).inputs["pixel_values"], expected["pixel_values"])


def test_options_go_to_the_image_processor_and_no_others_do(tmp_path: Path) -> None:
    folder = FOLDERS["qwen2_vl"].write(tmp_path)
    image = images()[0]
    plain = MediaProcessor(folder).image(image)
    less = {"size": {"shortest_edge": 256, "longest_edge": 512}}
    small = MediaProcessor(folder, less).image(image)
    assert small.num_rows < plain.num_rows
    processor = MediaProcessor(folder)
    assert processor.image(image, less).digest == small.digest
    for options in ({"return_tensors": "pt"}, {"device": "cuda"}, {"sleep": 1}, {"size": {"height": [1] * 4096}}):
        with pytest.raises(RequestError, match="mm_processor_kwargs"):
            processor.image(image, options)


def test_an_image_larger_than_a_message_is_the_requests_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    processor, image = MediaProcessor(FOLDERS["qwen2_vl"].write(tmp_path)), images()[0]
    size = input_bytes(processor.image(image).inputs)
    monkeypatch.setattr("tessera.media.processor.MAX_INPUT_BYTES", size)
    processor.image(image)
    monkeypatch.setattr("tessera.media.processor.MAX_INPUT_BYTES", size - 1)
    with pytest.raises(RequestError, match="make it smaller"):
        processor.image(image)


def test_a_size_that_the_processor_does_not_take_is_the_requests_fault(tmp_path: Path) -> None:
    processor = MediaProcessor(FOLDERS["qwen2_vl"].write(tmp_path))
    with pytest.raises(RequestError, match="does not take this image: absolute aspect ratio"):
        processor.image(Image.new("RGB", (4000, 2)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"processor_class": "ChineseCLIPProcessor"}, "names no text that stands for one"),
        ({"processor_class": "Missing"}, "cannot be loaded"),
        ({"processor_class": "LlavaProcessor", "patch_size": None}, "cannot be processed: LlavaProcessor"),
    ],
)
def test_a_processor_without_a_way_to_images_is_refused_in_one_line(
    change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    folder = FOLDERS["llava"].write(tmp_path)
    (folder / "processor_config.json").write_text(json.dumps(change))
    with pytest.raises(ModelError, match=message) as caught:
        MediaProcessor(folder)
    assert "\n" not in caught.value.message


def test_without_pillow_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ModelError, match=r"pip install 'tessera-llm\[vision\]'"):
        MediaProcessor(tmp_path)


def test_code_of_the_model_is_not_run(tmp_path: Path) -> None:
    folder = FOLDERS["llava"].write(tmp_path)
    (folder / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()\nclass P: pass\n")
    auto_map = {"AutoProcessor": "evil.P", "AutoImageProcessor": "evil.P", "AutoTokenizer": ["evil.P", "evil.P"]}
    for name in ("processor_config.json", "preprocessor_config.json", "tokenizer_config.json"):
        config = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps({**config, "auto_map": auto_map}))
    assert MediaProcessor(folder).image(images()[0]).num_rows == 16
    assert not (tmp_path / "ran").exists()


def test_media_crosses_processes_and_its_digest_is_of_its_inputs() -> None:
    inputs = {"pixel_values": np.arange(6, dtype=np.float32).reshape(1, 2, 3), "grid": np.array([[1, 2, 3]])}
    media = ProcessedMedia("image", digest_of(inputs), "<image>" * 4, 4, inputs)
    back = decoder(ProcessedMedia).decode(encoder().encode(media))
    assert (back.digest, back.replacement, back.num_rows) == (media.digest, media.replacement, 4)
    for name, array in inputs.items():
        np.testing.assert_array_equal(back.inputs[name], array, strict=True)
    others = [
        {**inputs, "grid": inputs["grid"].astype(np.int32)},
        {**inputs, "grid": inputs["grid"].reshape(3, 1)},
        {"pixel_values": inputs["pixel_values"], "grids": inputs["grid"]},
        {**inputs, "pixel_values": inputs["pixel_values"] + np.float32(math.ulp(5.0) * 2**30)},
    ]
    assert len({digest_of(other) for other in [inputs, *others]}) == 5
    assert digest_of(dict(reversed(inputs.items()))) == media.digest
