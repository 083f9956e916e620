"""The media worker's process: makes the inputs of a model's vision tower of images, one at a time, within limits.

An image is a small program for a decoder: a few bytes can ask for any amount of memory and time, and decoders crash.
"""

from __future__ import annotations

import msgspec

from tessera.media.image import read_image
from tessera.media.item import MediaReady
from tessera.media.messages import MEDIA, ImageJob, MediaDone, MediaStart, pixel_limits
from tessera.media.processor import MediaProcessor
from tessera.processes.job_loop import run


class _MediaFiles:
    """What the process has loaded."""

    def __init__(self, start: MediaStart) -> None:
        self._processor = MediaProcessor(start.folder, start.options)
        self._max_pixels = start.max_pixels

    @property
    def ready(self) -> MediaReady:
        return self._processor.ready

    def answer(self, job: bytearray) -> MediaDone:
        """Raises RequestError or MemoryError."""
        pixel_limits(0).apply()
        image = msgspec.msgpack.decode(job, type=ImageJob)
        read = read_image(image.data, self._max_pixels, lambda pixels: pixel_limits(pixels).apply())
        return MediaDone(self._processor.image(read, image.options))


def _load(start: bytearray) -> _MediaFiles:
    """Raises ModelError, RequestError or MemoryError."""
    return _MediaFiles(msgspec.msgpack.decode(start, type=MediaStart))


def main() -> int:
    """Runs the process and returns its exit code."""
    return run(MEDIA, _load)
