"""Videos: which frames a model sees, files that are none or are made to cost a reader time and memory, and what a
worker makes of one."""

from __future__ import annotations

import io
import re
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tessera.errors import ModelError, RequestError
from tessera.media.messages import MediaStart
from tessera.media.placement import placed
from tessera.media.processor import MediaProcessor
from tessera.media.video import VideoFacts, frames_file, read_video
from tessera.media.workers import MediaWorkers
from tests.processor_folders import FOLDERS, VIDEO_FOLDERS
from tests.unit.media.test_hostile_files import peak_mib
from tests.unit.media.test_sounds import contained, noise
from tests.video_files import encoded, frames

MAX_PIXELS = 2**16
MOST_SECONDS = 8.0
MP4 = encoded(frames(40))
WEBM = encoded(frames(40), 30, "webm", "libvpx")


# ---- what is read ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "codec"), [("mp4", "libx264"), ("webm", "libvpx"), ("avi", "mpeg4"), ("gif", "gif")])
def test_the_frames_are_those_that_were_chosen(kind: str, codec: str) -> None:
    import av

    data = encoded(frames(20), 10, kind, codec)
    with av.open(io.BytesIO(data)) as container:
        every = np.stack([frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)])
    told: list[VideoFacts] = []

    def choose(facts: VideoFacts) -> list[int]:
        told.append(facts)
        return [0, 3, 3, 17]

    seen = read_video(data, choose, MAX_PIXELS, MOST_SECONDS)
    np.testing.assert_array_equal(seen.pixels, every[[0, 3, 3, 17]])
    assert told == [VideoFacts(20, 10.0, 64, 96)]


def test_a_file_of_frames_is_read_as_these_frames() -> None:
    seen = read_video(frames_file(frames(5), 2.5), lambda facts: range(1, 4), MAX_PIXELS, MOST_SECONDS)
    np.testing.assert_array_equal(seen.pixels, frames(5)[1:4])
    assert seen.facts == VideoFacts(5, 2.5, 64, 96)


def test_without_pyav_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(ModelError, match=r"pip install 'tessera-llm\[video\]'"):
        read_video(MP4, lambda facts: [0], MAX_PIXELS, MOST_SECONDS)


# ---- hostile files ---------------------------------------------------------------------------------------------------

OK = "^$"
NO_KIND, BROKEN, TOO_LARGE = "of a kind that is not read", "truncated or broken", "more than 65536 pixels"


def with_box(name: bytes, offset: int, value: bytes) -> bytes:
    """The MP4 with other bytes in a box."""
    place = MP4.index(name) + 4 + offset
    return MP4[:place] + value + MP4[place + len(value) :]


def picture(kind: str) -> bytes:
    data = io.BytesIO()
    pictures = [Image.fromarray(one) for one in frames(3)]
    pictures[0].save(data, kind, save_all=True, append_images=pictures[1:], duration=100)
    return data.getvalue()


# Each with a pattern of what its sender is told.
FILES: dict[str, tuple[Callable[[], bytes], str]] = {
    "nothing": (lambda: b"", NO_KIND),
    "noise": (lambda: np.random.default_rng(3).bytes(100_000), NO_KIND),
    "a page": (lambda: b"<!DOCTYPE html><script>alert(1)</script>", NO_KIND),
    "a playlist": (lambda: b"#EXTM3U\nfile:///etc/passwd\n", NO_KIND),
    "an animated PNG": (lambda: picture("PNG"), NO_KIND),
    "an animated WebP": (lambda: picture("WEBP"), NO_KIND),
    "an animated GIF": (lambda: picture("GIF"), OK),
    "GIF of 65535 by 65535": (lambda: picture("GIF")[:6] + b"\xff" * 4 + picture("GIF")[10:], BROKEN),
    "MP4 without video": (lambda: contained("mp4", "aac", noise(48_000)), "has no video"),
    "MP4 cut short": (lambda: MP4[: len(MP4) // 2], BROKEN),
    "MP4's first box": (lambda: MP4[:32], f"{BROKEN}|has no video"),
    "MP4 that names a file": (lambda: with_box(b"url ", 0, b"file:///etc/passwd"), "codec is not one"),
    "MP4 of 10^6 frames": (lambda: with_box(b"stsz", 8, struct.pack(">I", 10**6)), f"{BROKEN}|{OK}"),
    "MP4 with noise in it": (lambda: MP4[:2000] + np.random.default_rng(5).bytes(500) + MP4[2500:], f"{BROKEN}|{OK}"),
    "MP4 that is turned": (lambda: with_box(b"tkhd", 40, struct.pack(">4i", 0, 2**16, 0, -(2**16))), OK),
    "MP4 of 10^5 by 10^5": (lambda: with_box(b"avc1", 24, b"\xff" * 4), f"{OK}|{TOO_LARGE}"),
    "MP4 of too many pixels": (lambda: encoded(frames(3, 300, 300)), TOO_LARGE),
    "MP4 that is too long": (lambda: encoded(frames(20), 2), "more than 8 seconds"),
    "MP4 of one frame": (lambda: encoded(frames(1)), "too few frames"),
    "MP4 of no steady rate": (lambda: encoded(frames(9), times=[0, 1, 2, 30, 31, 32, 90, 91, 92]), OK),
    "WebM cut short": (lambda: WEBM[: len(WEBM) // 2], f"{OK}|{BROKEN}"),
    "WebM's first bytes": (lambda: b"\x1a\x45\xdf\xa3" + bytes(100), BROKEN),
    "AVI's first bytes": (lambda: b"RIFF\x00\x00\x00\x00AVI " + bytes(100), f"{BROKEN}|has no video"),
    "AVI of a codec that is not read": (lambda: encoded(frames(9), 10, "avi", "ffvhuff"), "codec is not one"),
    "frames that are not there": (lambda: frames_file(frames(2))[:-1], BROKEN),
    "frames of no size": (lambda: struct.pack("<8sdIII", b"frames\r\n", 1.0, 9, 0, 0), BROKEN),
    "frames of no time": (lambda: frames_file(frames(2), float("nan")), BROKEN),
}  # fmt: skip


async def test_no_file_costs_much_or_ends_the_worker(tmp_path: Path) -> None:
    folder = FOLDERS["qwen2_vl"].write(tmp_path)
    start = MediaStart(str(folder), modalities=("video",), max_pixels=MAX_PIXELS, max_seconds=MOST_SECONDS)
    async with MediaWorkers(start) as workers:
        await workers.process("video", MP4)
        before = peak_mib(workers._queue.begin().pid)
        told = {}
        for name, (make, _) in FILES.items():
            try:
                media = await workers.process("video", make())
                told[name] = "" if media.num_rows else "no rows"
            except RequestError as error:
                told[name] = error.message
        with pytest.raises(RequestError, match="takes no images"):
            await workers.process("image", MP4)
        assert peak_mib(workers._queue.begin().pid) - before < 100
        assert workers.restarts == 0
    wrong = {name: told[name] for name, (_, expected) in FILES.items() if not re.search(expected, told[name])}
    assert wrong == {}
    assert not any("\n" in message for message in told.values())


# ---- what the model takes --------------------------------------------------------------------------------------------

RECORDED: dict[str, tuple[tuple[int, ...], str, float]] = {
    "qwen2_vl": ((648, 96), "<|video_pad|><|video_pad|>", 1500.4547),
    "qwen3_vl": ((480, 96), "<0.3 seconds><|vision_start|><|video_pad|>", 390.92816),
    "llava_next_video": ((1, 8, 3, 28, 28), "<video><video>", 615.59747),
    "video_llama_3": ((960, 48), "Time 0.0s:<|video_pad|>", 1105.3646),
}
"""Of a kind of processor: the shape of what the tower takes, how the text begins, and the sum of all values. By
transformers with torchvision 0.28 as it is."""


@pytest.mark.parametrize("kind", sorted(RECORDED))
async def test_the_inputs_are_those_of_transformers_with_torchvision(kind: str, tmp_path: Path) -> None:
    shape, begins, total = RECORDED[kind]
    start = MediaStart(str(VIDEO_FOLDERS[kind].write(tmp_path)), modalities=("image", "video"))
    async with MediaWorkers(start) as workers:
        assert set((await workers.ready()).places) == {"image", "video"}
        media = await workers.process("video", frames_file(frames(30, 130, 200), 10.0))
        values = media.inputs["pixel_values_videos"]
        assert (values.shape, media.replacement[: len(begins)]) == (shape, begins)
        np.testing.assert_allclose(values.sum(), total, rtol=1e-6)
        fewer = await workers.process("video", frames_file(frames(30, 130, 200), 10.0), {"num_frames": 4})
        assert 0 < fewer.num_rows < media.num_rows
        with pytest.raises(RequestError, match="video_metadata"):
            await workers.process("video", MP4, {"video_metadata": []})


async def test_a_video_of_smolvlm_is_an_image_for_each_frame_between_times(tmp_path: Path) -> None:
    pytest.importorskip("num2words")
    start = MediaStart(str(VIDEO_FOLDERS["smolvlm"].write(tmp_path)), modalities=("image", "video"))
    async with MediaWorkers(start) as workers:
        ready = await workers.ready()
        media = await workers.process("video", frames_file(frames(30, 130, 200), 10.0), {"num_frames": 2, "fps": 1})
        assert media.inputs["pixel_values"].shape == (1, 2, 3, 28, 28)
        shown = f"<fake_token_around_image><global-img>{'<image>' * 4}<fake_token_around_image>"
        assert media.replacement == (
            "You are provided the following series of two frames from a 0:00:03 [H:MM:SS] video.\n"
            f"\nFrame from 00:00:{shown}\nFrame from 00:02:{shown}\n\n"
        )
        assert media.num_rows == 8
        (token,) = ready.places["image"].feature_ids
        ids = [1, *[token] * 4, 2, *[token] * 4]
        (one,) = placed(ids, [media], ready)
        assert (one.modality, one.places.tolist()) == ("video", [1, 2, 3, 4, 6, 7, 8, 9])
        image = await workers.process("image", picture("PNG"))
        with pytest.raises(RequestError, match="the same tokens for images and videos, so a prompt holds either"):
            placed(ids + [token] * image.num_rows, [image, media], ready)


def test_without_num2words_smolvlm_reads_images_and_says_what_videos_need(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers.models.smolvlm import processing_smolvlm
    from transformers.video_utils import VideoMetadata

    monkeypatch.setattr(processing_smolvlm, "num2words", None)
    folder = VIDEO_FOLDERS["smolvlm"].write(tmp_path)
    processor: Any = MediaProcessor(folder)
    assert processor.image(Image.new("RGB", (40, 60))).num_rows
    metadata = VideoMetadata(total_num_frames=2, fps=1.0, duration=2.0, frames_indices=[0, 1])
    with pytest.raises(ImportError, match=r"num2words is not installed .pip install 'tessera-llm\[video\]'"):
        processor._processor.replace_video_token({"pixel_values": np.zeros((1, 2)), "video_metadata": [metadata]}, 0)


async def test_a_video_of_internvl_is_an_image_for_each_frame_with_tokens_of_its_own(tmp_path: Path) -> None:
    start = MediaStart(str(VIDEO_FOLDERS["internvl"].write(tmp_path)), modalities=("image", "video"))
    async with MediaWorkers(start) as workers:
        places = (await workers.ready()).places
        assert not set(places["image"].feature_ids) & set(places["video"].feature_ids)
        media = await workers.process("video", frames_file(frames(30, 130, 200), 10.0), {"num_frames": 3})
        assert media.inputs["pixel_values"].shape == (3, 3, 28, 28)
        frame = f"<img>{'<video>' * 4}</img>"
        assert media.replacement == f"Frame1: {frame}\nFrame2: {frame}\nFrame3: {frame}"
        assert media.num_rows == 12
        image = await workers.process("image", picture("PNG"))
        assert "num_patches" not in image.inputs
