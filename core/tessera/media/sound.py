"""A sound from the bytes of a file, which may be anything: one channel, at the rate that a model takes."""

from __future__ import annotations

import io
import math
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Any

import numpy as np

from tessera.arrays import Array
from tessera.errors import ModelError, RequestError

MAX_CHANNELS = 8
MIN_RATE, MAX_RATE = 4_000, 192_000
"""In Hz."""
_FORMATS = frozenset({"WAV", "WAVEX", "FLAC", "MP3", "OGG"})
"""As libsndfile names them. It reads more, mostly older ones."""
_FORMAT_NAMES = "WAV, FLAC, MP3 or Ogg (Vorbis, Opus)"
_CONTAINERS = {b"ftyp": "mp4", b"\x1a\x45\xdf\xa3": "matroska"}
"""What PyAV reads, by the first four bytes or those behind four others: MP4 and M4A, WebM."""
_BLOCK = 2**16
"""Frames that are decoded at once."""
_UNKNOWN_FRAMES = 2**62
"""As many has a file that does not say how many it has."""
_UNKNOWN_BYTES = 0x7FFF0000
"""As long is a WAV at least whose writer could not know the length."""


def read_sound(data: bytes, rate: int, most_seconds: float, opened: Callable[[float], object] | None = None) -> Array:
    """[samples] float32: the mean of the channels, resampled to `rate` Hz as transformers' load_audio() does. opened:
    called with the seconds that the file says to have, or most_seconds where it says nothing, before any is decoded.
    Raises RequestError for what is no sound, is broken, empty or too long, and MemoryError."""
    try:
        import soundfile
        import soxr
    except (ImportError, OSError) as error:  # OSError: without the library that it calls
        raise ModelError("Sounds need soundfile and soxr; run: pip install 'tessera-llm[audio]'") from error
    head = data[:12]
    container = _CONTAINERS.get(head[:4]) or _CONTAINERS.get(head[4:8])
    if container is None and not _is_sound(head):
        raise RequestError(f"The sound is broken or of a kind that is not read here; send {_FORMAT_NAMES}.")
    try:
        if container is not None:
            source: _Source = _Container(data, container)
        else:
            source = _File(data, soundfile)
        with source:
            _check(source, most_seconds)
            if opened is not None:
                opened(most_seconds if source.seconds is None else source.seconds)
            return _resampled(source, rate, most_seconds, soxr)
    except (MemoryError, RequestError):
        raise
    except Exception as error:
        # A reader may raise anything for a broken file.
        raise _broken() from error


class _Source(ABC):
    """An open file. rate: in Hz. channels: their number. seconds: as the file says; None if it does not."""

    rate: int
    channels: int
    seconds: float | None

    def __enter__(self) -> _Source:
        return self

    @abstractmethod
    def __exit__(self, *_: object) -> None: ...

    @abstractmethod
    def blocks(self) -> Iterator[Array]:
        """[frames, channels] float32 each. Raises RequestError where the file ends before it says."""


class _File(_Source):
    """One that libsndfile reads."""

    def __init__(self, data: bytes, soundfile: Any) -> None:
        self._file = soundfile.SoundFile(io.BytesIO(data))
        if self._file.format not in _FORMATS or _is_cut_short(data):
            self._file.close()
            raise _broken()
        self.rate, self.channels = int(self._file.samplerate), int(self._file.channels)
        known = 0 <= self._file.frames < _UNKNOWN_FRAMES
        self.seconds = self._file.frames / self.rate if known and self.rate > 0 else None

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def blocks(self) -> Iterator[Array]:
        done = 0
        while True:
            block = self._file.read(_BLOCK, dtype="float32", always_2d=True)
            if not len(block):
                break
            done += len(block)
            yield block
        # What MP3 and Ogg say of their length is often no more than a guess.
        if self._file.format == "FLAC" and self.seconds is not None and done < self._file.frames:
            raise _broken()


class _Container(_Source):
    """One that PyAV reads: sounds of phones and browsers."""

    def __init__(self, data: bytes, name: str) -> None:
        if find_spec("av") is None:
            raise RequestError(
                f"MP4, M4A and WebM are read where PyAV is installed (pip install av); send {_FORMAT_NAMES}."
            )
        import av

        opening: Any = av.open
        self._container = opening(io.BytesIO(data), format=name)
        if not self._container.streams.audio:
            self._container.close()
            raise RequestError("The file has no sound.")
        stream = self._container.streams.audio[0]
        self.rate, self.channels = int(stream.rate or 0), int(stream.channels or 0)
        length = self._container.duration
        self.seconds = None if length is None or length < 0 else length / av.time_base
        self._resampler = av.AudioResampler(format="flt")

    def __exit__(self, *_: object) -> None:
        self._container.close()

    def blocks(self) -> Iterator[Array]:
        for frame in self._container.decode(audio=0):
            if (frame.sample_rate, frame.layout.nb_channels) != (self.rate, self.channels):
                raise _broken()
            for even in self._resampler.resample(frame):
                yield even.to_ndarray().reshape(-1, self.channels)


def _check(source: _Source, most_seconds: float) -> None:
    """Raises RequestError for what a file says of itself."""
    if not MIN_RATE <= source.rate <= MAX_RATE:
        raise RequestError(f"The sound has {source.rate} samples a second; send one with {MIN_RATE} to {MAX_RATE}.")
    if not 1 <= source.channels <= MAX_CHANNELS:
        raise RequestError(f"The sound has {source.channels} channels; send one with 1 to {MAX_CHANNELS}.")
    if source.seconds is not None and source.seconds > most_seconds:
        raise _too_long(most_seconds)


def _resampled(source: _Source, rate: int, most_seconds: float, soxr: Any) -> Array:
    stream = None if source.rate == rate else soxr.ResampleStream(source.rate, rate, 1, dtype="float32", quality="HQ")
    parts: list[Array] = []
    frames = 0
    for block in source.blocks():
        frames += len(block)
        if frames > most_seconds * source.rate:
            raise _too_long(most_seconds)
        if not np.isfinite(block).all():
            raise RequestError("The sound has samples that are no numbers.")
        mono = np.ascontiguousarray(block.mean(axis=1) if source.channels > 1 else block[:, 0])
        parts.append(mono if stream is None else stream.resample_chunk(mono))
    if not frames:
        raise RequestError("The sound has no samples.")
    if stream is not None:
        parts.append(stream.resample_chunk(np.zeros(0, np.float32), last=True))
    size = frames if stream is None else math.ceil(frames * rate / source.rate)
    samples = np.zeros(size, np.float32)
    done = 0
    for part in parts:
        kept = part[: size - done]
        samples[done : done + len(kept)] = kept
        done += len(kept)
    return samples


def _is_sound(head: bytes) -> bool:
    """Whether a file's first bytes are those of a format that is read here."""
    return bool(
        (head[:4] == b"RIFF" and head[8:12] == b"WAVE")
        or head.startswith((b"fLaC", b"OggS", b"ID3"))
        or (len(head) > 1 and head[0] == 0xFF and head[1] & 0xE0 == 0xE0 and head[1] & 0x06 != 0)
    )


def _is_cut_short(data: bytes) -> bool:
    """Whether a WAV ends before it says, which libsndfile reads as far as it goes."""
    place = 12 if data.startswith(b"RIFF") else len(data)
    while place + 8 <= len(data):
        name, size = struct.unpack_from("<4sI", data, place)
        place += 8 + size + size % 2
        if name == b"data":
            return bool(size < _UNKNOWN_BYTES and place - size % 2 > len(data))
    return False


def wav_file(samples: Array, rate: int) -> bytes:
    """A file of one channel that holds the very samples [n] float32."""
    body = np.ascontiguousarray(samples, "<f4").tobytes()
    form = struct.pack("<HHIIHH", 3, 1, rate, rate * 4, 4, 32)
    chunks = b"WAVE" + b"fmt " + struct.pack("<I", len(form)) + form + b"data" + struct.pack("<I", len(body)) + body
    return b"RIFF" + struct.pack("<I", len(chunks)) + chunks


def _broken() -> RequestError:
    return RequestError("The sound is truncated or broken; send it anew.")


def _too_long(most_seconds: float) -> RequestError:
    return RequestError(f"The sound has more than {most_seconds:g} seconds; send a shorter one.")
