"""Sounds: what is read of a file, files that are none or are made to cost a reader time and memory, and what a worker
makes of one."""

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
import soundfile
import soxr

from tessera.arrays import Array
from tessera.errors import ModelError, RequestError
from tessera.media.messages import MediaStart
from tessera.media.sound import read_sound, wav_file
from tessera.media.workers import MediaWorkers
from tests.processor_folders import SOUND_FOLDERS
from tests.unit.media.test_hostile_files import peak_mib

RATE = 16_000
MOST_SECONDS = 8.0


def noise(*shape: int) -> Array:
    return (np.random.default_rng(1).standard_normal(shape) / 10).astype(np.float32)


def saved(kind: str, samples: Array, rate: int = RATE, coding: str | None = None) -> bytes:
    data = io.BytesIO()
    soundfile.write(data, samples, rate, format=kind, subtype=coding)
    return data.getvalue()


def contained(kind: str, codec: str, samples: Array) -> bytes:
    """In a container of PyAV's."""
    import av

    data = io.BytesIO()
    with av.open(data, "w", format=kind) as container:
        stream: Any = container.add_stream(codec, rate=48_000, layout="mono")
        frame = av.AudioFrame.from_ndarray(samples[None], format="flt", layout="mono")
        frame.sample_rate = 48_000
        for packet in (*stream.encode(frame), *stream.encode(None)):
            container.mux(packet)
    return data.getvalue()


# ---- what is read ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "coding"), [("WAV", "PCM_16"), ("WAV", "FLOAT"), ("FLAC", "PCM_24"), ("OGG", "VORBIS"), ("OGG", "OPUS")]
)
@pytest.mark.parametrize("channels", [1, 2, 6])
@pytest.mark.parametrize("rate", [8_000, 48_000])
def test_a_sound_is_the_mean_of_its_channels_at_the_wanted_rate(
    kind: str, coding: str, channels: int, rate: int
) -> None:
    data = saved(kind, noise(100_000, channels), rate, coding)
    whole, _ = soundfile.read(io.BytesIO(data), dtype="float32", always_2d=True)
    expected = soxr.resample(whole.T.mean(axis=0) if channels > 1 else whole[:, 0], rate, RATE, quality="soxr_hq")
    samples = read_sound(data, RATE, 60)
    assert samples.dtype == np.float32
    assert len(samples) == -(-100_000 * RATE // rate)
    np.testing.assert_array_equal(samples[: len(expected)], expected[: len(samples)])
    assert not samples[len(expected) :].any()


def test_a_file_of_samples_is_read_as_these_samples() -> None:
    samples = noise(70_001)
    np.testing.assert_array_equal(read_sound(wav_file(samples, RATE), RATE, 60), samples)


@pytest.mark.parametrize(("kind", "codec"), [("mp4", "aac"), ("webm", "libopus")])
def test_containers_are_read_where_pyav_is_installed(kind: str, codec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data = contained(kind, codec, noise(96_000))
    assert abs(len(read_sound(data, RATE, 60)) - 32_000) < 1_000
    with pytest.raises(RequestError, match="more than 1 seconds"):
        read_sound(data, RATE, 1)
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(RequestError, match="pip install av"):
        read_sound(data, RATE, 60)


def test_nothing_is_decoded_of_what_says_that_it_is_too_long() -> None:
    def opened(_: float) -> None:
        raise AssertionError("decoding began")

    with pytest.raises(RequestError, match="more than 1 seconds"):
        read_sound(saved("FLAC", noise(RATE + 1)), RATE, 1, opened)


def test_without_its_libraries_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "soxr", None)
    with pytest.raises(ModelError, match=r"pip install 'tessera-llm\[audio\]'"):
        read_sound(b"", RATE, 60)


# ---- hostile files ---------------------------------------------------------------------------------------------------

OK = "^$"
NO_KIND, BROKEN, TOO_LONG = "of a kind that is not read", "truncated or broken", "more than 8 seconds"
WAV, FLAC, OGG, MP3 = (saved(kind, noise(RATE)) for kind in ("WAV", "FLAC", "OGG", "MP3"))
PAGE = b"<!DOCTYPE html><script>alert(1)</script>"


def wav(
    channels: int = 1, rate: int = RATE, bits: int = 16, body: bytes = bytes(4000), says: int | None = None
) -> bytes:
    """says: the length in bytes that its header has."""
    form = struct.pack("<HHIIHH", 1, channels, rate & 0xFFFFFFFF, rate * channels * bits // 8 & 0xFFFFFFFF, 2, bits)
    size = len(body) if says is None else says
    return (
        b"RIFF"
        + struct.pack("<I", 36 + len(body))
        + b"WAVEfmt "
        + struct.pack("<I", 16)
        + form
        + b"data"
        + (struct.pack("<I", size) + body)
    )


def flac_of(frames: int) -> bytes:
    """One that says to have so many frames."""
    whole = bytearray(FLAC)
    packed = int.from_bytes(whole[18:26], "big") & ~(2**36 - 1) | frames
    whole[18:26] = packed.to_bytes(8, "big")
    return bytes(whole)


# Each with a pattern of what its sender is told.
FILES: dict[str, tuple[Callable[[], bytes], str]] = {
    "nothing": (lambda: b"", NO_KIND),
    "noise": (lambda: np.random.default_rng(3).bytes(100_000), f"{NO_KIND}|{BROKEN}"),
    "zeros": (lambda: bytes(1_000_000), NO_KIND),
    "a page": (lambda: PAGE, NO_KIND),
    "a playlist": (lambda: b"#EXTM3U\nfile:///etc/passwd\n", NO_KIND),
    "AIFF": (lambda: saved("AIFF", noise(99)), NO_KIND),
    "AVI": (lambda: b"RIFF\x00\x00\x00\x00AVI " + bytes(100), NO_KIND),
    "WAV's header alone": (lambda: WAV[:44], BROKEN),
    "WAV cut short": (lambda: WAV[: len(WAV) // 2], BROKEN),
    "WAV of 2^30 frames": (lambda: wav(says=2**31 - 2**20), BROKEN),
    "WAV of unknown length": (lambda: wav(says=2**32 - 1), OK),
    "WAV without frames": (lambda: wav(body=b""), "has no samples"),
    "WAV of no rate": (lambda: wav(rate=0), f"{BROKEN}|samples a second"),
    "WAV of a rate of 2^32": (lambda: wav(rate=2**32 - 1), f"{BROKEN}|samples a second"),
    "WAV of 9 channels": (lambda: wav(channels=9), f"{BROKEN}|9 channels"),
    "WAV of 65535 channels": (lambda: wav(channels=65535), f"{BROKEN}|channels"),
    "WAV of 17 bits": (lambda: wav(bits=17), f"{BROKEN}|{OK}"),
    "WAV that is too long": (lambda: wav(rate=4000, body=bytes(2 * 4000 * 9)), TOO_LONG),
    "WAV with a NaN": (lambda: wav_file(np.array([0.0, np.nan] * 999, np.float32), RATE), "no numbers"),
    "WAV with an infinity": (lambda: wav_file(np.array([0.0, -np.inf] * 999, np.float32), RATE), "no numbers"),
    "WAV of 10^38": (lambda: wav_file(noise(RATE) * np.float32(1e38), RATE), f"no numbers|{OK}"),
    "WAV of one frame": (lambda: wav(body=bytes(2)), "too small"),
    "WAV that is a page too": (lambda: WAV + PAGE, OK),
    "FLAC cut short": (lambda: FLAC[: len(FLAC) // 2], BROKEN),
    "FLAC's header alone": (lambda: FLAC[:42], f"{BROKEN}|no samples"),
    "FLAC of 2^31 frames": (lambda: flac_of(2**31), TOO_LONG),
    "FLAC of 2^36 frames": (lambda: flac_of(2**36 - 1), TOO_LONG),
    "FLAC with more frames than it says": (lambda: flac_of(9), f"{OK}|{BROKEN}|too small"),
    "FLAC bomb": (lambda: saved("FLAC", np.zeros((192_000 * 30, 1), np.float32), 192_000), TOO_LONG),
    "FLAC with noise in it": (lambda: FLAC[:99] + np.random.default_rng(5).bytes(500) + FLAC[599:], f"{BROKEN}|{OK}"),
    "Ogg cut short": (lambda: OGG[: len(OGG) // 2], f"{OK}|has no samples"),
    "Ogg's first page": (lambda: OGG[:60], BROKEN),
    "Ogg of 2^62 frames": (
        lambda: OGG.replace(struct.pack("<q", RATE), struct.pack("<q", 2**62)), f"{TOO_LONG}|{BROKEN}",
    ),
    "MP3": (lambda: MP3, OK),
    "MP3 cut short": (lambda: MP3[: len(MP3) // 2], OK),
    "MP3's tags alone": (lambda: b"ID3\x04\x00\x00\x7f\x7f\x7f\x7f" + bytes(100), BROKEN),
    "MP4's first box": (lambda: b"\x00\x00\x00\x18ftypmp42" + bytes(100), BROKEN),
    "MP4 that names a file": (
        lambda: b"\x00\x00\x00\x18ftypmp42" + b"\x00\x00\x00\x20moovurl file:///etc/passwd", BROKEN,
    ),
    "WebM's first bytes": (lambda: b"\x1a\x45\xdf\xa3" + bytes(100), BROKEN),
}  # fmt: skip


async def test_no_file_costs_much_or_ends_the_worker_which_also_decodes_alone(tmp_path: Path) -> None:
    folder = SOUND_FOLDERS["glmasr"].write(tmp_path)
    start = MediaStart(str(folder), modalities=("audio",), max_seconds=MOST_SECONDS)
    async with MediaWorkers(start) as workers:
        assert (await workers.ready()).places["audio"].rate == RATE
        before = peak_mib(workers._queue.begin().pid)
        told = {}
        for name, (make, _) in FILES.items():
            try:
                media = await workers.process("audio", make())
                told[name] = "" if media.num_rows else "no rows"
            except RequestError as error:
                told[name] = error.message
        waveform = await workers.waveform(saved("WAV", noise(48_000, 2), 48_000), 24_000)
        assert (waveform.rate, waveform.samples.shape, waveform.samples.dtype) == (24_000, (24_000,), np.float32)
        with pytest.raises(RequestError, match=TOO_LONG):
            await workers.waveform(wav(body=bytes(2 * RATE * 9)))
        with pytest.raises(RequestError, match="takes no images"):
            await workers.process("image", WAV)
        assert peak_mib(workers._queue.begin().pid) - before < 100
        assert workers.restarts == 0
    wrong = {name: told[name] for name, (_, expected) in FILES.items() if not re.search(expected, told[name])}
    assert wrong == {}
    assert not any("\n" in message for message in told.values())
