"""The frames of a video that a model sees, from the bytes of a file, which may be anything."""

from __future__ import annotations

import io
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from tessera.arrays import Array
from tessera.errors import ModelError, RequestError

MAX_FRAMES = 2**17
"""That a video may have: an hour of 30 a second."""
MAX_SEEN_PIXELS = 2**28
"""That the frames which a model sees may have together."""
_CONTAINERS: Mapping[str, Callable[[bytes], bool]] = MappingProxyType(
    {
        "mp4": lambda head: head[4:8] == b"ftyp",
        "matroska": lambda head: head[:4] == b"\x1a\x45\xdf\xa3",
        "avi": lambda head: head[:4] == b"RIFF" and head[8:12] == b"AVI ",
        "gif": lambda head: head[:6] in (b"GIF87a", b"GIF89a"),
    }
)
"""By FFmpeg's name, whether a file begins as one. It reads a hundred others that nobody sends to a model."""
_CODECS = frozenset(
    ("h264", "hevc", "av1", "vp8", "vp9", "mpeg4", "mpeg1video", "mpeg2video", "mjpeg", "h263", "theora", "gif")
)
_FORMAT_NAMES = "MP4, MOV, WebM, Matroska, AVI or GIF"
_FRAMES = b"frames\r\n"
_LAYOUT = struct.Struct("<8sdIII")
"""Of a file of frames: _FRAMES; frames a second, or 0; their number, height and width; then RGB."""
_CHANNELS = 3


@dataclass(frozen=True)
class VideoFacts:
    """What is known of a video before a frame is decoded."""

    # How many it has.
    frames: int
    # Frames a second, their mean; None of frames without times.
    rate: float | None
    # In pixels.
    height: int
    width: int

    @property
    def seconds(self) -> float:
        """0 of frames without times."""
        return self.frames / self.rate if self.rate else 0.0


class SeenFrames(NamedTuple):
    """The frames that a model sees of a video."""

    # [frames, height, width, 3] uint8, RGB.
    pixels: Array
    # Their numbers in the video, ascending; one that is there twice is seen twice.
    numbers: Sequence[int]
    # Of the video.
    facts: VideoFacts


def read_video(
    data: bytes,
    choose: Callable[[VideoFacts], Sequence[int]],
    max_pixels: int,
    most_seconds: float,
    opened: Callable[[int, int], object] | None = None,
) -> SeenFrames:
    """As transformers' load_video() with PyAV reads it: the frames as they are stored, not turned as the file may ask
    for. choose: the numbers of the frames to decode, ascending. max_pixels: of a frame. opened: called with the pixels
    of all frames up to the last chosen one, and of the chosen ones, before any is decoded. Raises RequestError for what
    is no video, is broken or too large, ModelError without PyAV, and MemoryError."""
    source = _opened(data)
    try:
        with source:
            facts = source.facts(max_pixels)
            if facts.width * facts.height > max_pixels:
                raise RequestError(f"The video's frames have more than {max_pixels} pixels; send a smaller one.")
            if not 1 <= facts.frames <= MAX_FRAMES:
                raise RequestError(f"The video has {facts.frames} frames; send one with 1 to {MAX_FRAMES}.")
            if facts.seconds > most_seconds:
                raise RequestError(f"The video has more than {most_seconds:g} seconds; send a shorter one.")
            numbers = choose(facts)
            frame = facts.width * facts.height
            if not len(numbers):
                raise RequestError("The video has too few frames for the model; send a longer one.")
            if len(numbers) * frame > MAX_SEEN_PIXELS:
                raise RequestError(
                    f"The model sees {len(numbers)} frames of the video, which have more than {MAX_SEEN_PIXELS} pixels "
                    "together; send a smaller or a shorter one."
                )
            if opened is not None:
                opened((int(numbers[-1]) + 1) * frame, len(numbers) * frame)
            return SeenFrames(_chosen(source, facts, numbers), numbers, facts)
    except (MemoryError, RequestError, ModelError):
        raise
    except Exception as error:
        # A reader may raise anything for a broken file.
        raise _broken() from error


def frames_file(frames: Array, rate: float | None = None) -> bytes:
    """A file of the very frames [n, height, width, 3] uint8. rate: frames a second."""
    count, height, width, _ = frames.shape
    return _LAYOUT.pack(_FRAMES, rate or 0.0, count, height, width) + np.ascontiguousarray(frames).tobytes()


def _opened(data: bytes) -> _Video:
    """Raises RequestError, ModelError."""
    if data.startswith(_FRAMES):
        return _FrameFile(data)
    name = next((name for name, begins in _CONTAINERS.items() if begins(data[:12])), None)
    if name is None:
        raise RequestError(f"The video is broken or of a kind that is not read here; send {_FORMAT_NAMES}.")
    try:
        return _EncodedVideo(data, name)
    except ImportError as error:
        raise ModelError("Videos need PyAV; run: pip install 'tessera-llm[video]'") from error
    except (MemoryError, RequestError):
        raise
    except Exception as error:
        raise _broken() from error


def _chosen(source: _Video, facts: VideoFacts, numbers: Sequence[int]) -> Array:
    """[numbers, height, width, 3]"""
    pixels = np.zeros((len(numbers), facts.height, facts.width, _CHANNELS), np.uint8)
    done = 0
    for number, frame in enumerate(source.frames()):
        if done == len(numbers):
            break
        if number < numbers[done]:
            continue
        shown = frame()
        if shown.shape != pixels.shape[1:]:
            raise RequestError("The video's frames have unlike sizes; send one with frames of one size.")
        while done < len(numbers) and numbers[done] == number:
            pixels[done] = shown
            done += 1
    if done < len(numbers):
        raise _broken()
    return pixels


class _Video(ABC):
    """An open file."""

    def __enter__(self) -> _Video:
        return self

    @abstractmethod
    def __exit__(self, *_: object) -> None: ...

    @abstractmethod
    def facts(self, max_pixels: int) -> VideoFacts:
        """Raises RequestError. max_pixels: the most that a decoder may take for a frame."""

    @abstractmethod
    def frames(self) -> Iterator[Callable[[], Array]]:
        """Decodes one after the other: each is [height, width, 3] when it is called."""


class _FrameFile(_Video):
    """Frames as they are."""

    def __init__(self, data: bytes) -> None:
        if len(data) < _LAYOUT.size:
            raise _broken()
        _, rate, *shape = _LAYOUT.unpack_from(data)
        size = shape[0] * shape[1] * shape[2] * _CHANNELS
        if not size or len(data) - _LAYOUT.size != size or not 0 <= rate < np.inf:
            raise _broken()
        self._facts = VideoFacts(shape[0], rate or None, shape[1], shape[2])
        self._pixels = np.frombuffer(data, np.uint8, offset=_LAYOUT.size).reshape(*shape, _CHANNELS)

    def __exit__(self, *_: object) -> None:
        pass

    def facts(self, max_pixels: int) -> VideoFacts:
        return self._facts

    def frames(self) -> Iterator[Callable[[], Array]]:
        for frame in self._pixels:
            yield partial(np.asarray, frame)


class _EncodedVideo(_Video):
    """One that PyAV reads."""

    def __init__(self, data: bytes, name: str) -> None:
        import av

        opening: Any = av.open
        self._container = opening(io.BytesIO(data), format=name)
        if not self._container.streams.video:
            self._container.close()
            raise RequestError("The file has no video.")
        self._stream = self._container.streams.video[0]
        codec = self._stream.codec_context
        if codec is None or (codec.name not in _CODECS and codec.codec.canonical_name not in _CODECS):
            self._container.close()
            raise RequestError(f"The video's codec is not one that is read here; send {_FORMAT_NAMES} with H.264.")
        codec.thread_count = 1

    def __exit__(self, *_: object) -> None:
        self._container.close()

    def facts(self, max_pixels: int) -> VideoFacts:
        """Counts what there is, since a file may say anything of that."""
        codec = self._stream.codec_context
        codec.options = {"max_pixels": str(max_pixels)}
        count = 0
        for packet in self._container.demux(self._stream):
            count += packet.size > 0
            if count > MAX_FRAMES:
                break
        self._container.seek(0)
        rate = self._stream.average_rate or self._stream.guessed_rate
        if not rate or rate <= 0:
            raise RequestError("The video does not say how many frames a second it has; send another one.")
        if not (codec.height and codec.width):
            raise _broken()
        return VideoFacts(count, float(rate), int(codec.height), int(codec.width))

    def frames(self) -> Iterator[Callable[[], Array]]:
        for frame in self._container.decode(self._stream):
            yield partial(frame.to_ndarray, format="rgb24")


def _broken() -> RequestError:
    return RequestError("The video is truncated or broken; send it anew.")
