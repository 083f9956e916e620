"""The media worker's process: makes the inputs of a model's towers of images, videos and sounds, one at a time,
within limits.

An image, a video or a sound is a small program for a decoder: a few bytes can ask for any amount of memory and time,
and decoders crash.
"""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from tessera.arrays import Array
from tessera.gguf.vision.model import open_vision_model
from tessera.media.image import read_image
from tessera.media.item import MediaReady, ProcessedMedia, Waveform
from tessera.media.messages import (
    MEDIA,
    MediaDone,
    MediaJob,
    MediaStart,
    WaveformJob,
    pixel_limits,
    sound_limits,
    video_limits,
)
from tessera.media.processor import MediaProcessor
from tessera.media.sound import read_sound
from tessera.media.speech_processor import SpeechProcessor
from tessera.media.video import SeenFrames, VideoFacts, read_video
from tessera.processes.job_limits import MIB, JobLimits
from tessera.processes.job_loop import run

_WITH_TORCH = JobLimits(MEDIA.loading.seconds, 32 * 1024 * MIB)
"""To load, where torch is loaded too: the libraries for accelerators that some builds bring take much address space."""


class _MediaFiles:
    """What the process has loaded."""

    def __init__(self, start: MediaStart) -> None:
        self._processor: MediaProcessor | SpeechProcessor
        if start.has_encoder:
            self._processor = SpeechProcessor(start.folder, start.options, start.encoder)
        elif start.mmproj:
            with open_vision_model(Path(start.folder), Path(start.mmproj)).processor_folder() as folder:
                self._processor = MediaProcessor(folder, start.options, start.modalities)
        else:
            self._processor = MediaProcessor(start.folder, start.options, start.modalities, start.tiled)
        self._max_pixels, self._max_seconds = start.max_pixels, start.max_seconds

    @property
    def ready(self) -> MediaReady:
        return self._processor.ready

    def answer(self, job: bytearray) -> MediaDone | Waveform:
        """Raises RequestError or MemoryError."""
        sound_limits(0).apply()
        asked = msgspec.msgpack.decode(job, type=MediaJob | WaveformJob)
        if isinstance(asked, WaveformJob):
            return Waveform(self._sound(asked.data, asked.rate), asked.rate)
        return MediaDone(self._processed(asked))

    def _processed(self, job: MediaJob) -> ProcessedMedia:
        if job.modality == "audio":
            return self._processor.sound(self._sound(job.data, self.ready.places["audio"].rate), job.options)
        assert isinstance(self._processor, MediaProcessor), "an encoder reads sounds"
        if job.modality == "video":
            return self._processor.video(self._frames(self._processor, job), job.options)
        image = read_image(job.data, self._max_pixels, lambda pixels: pixel_limits(pixels).apply())
        return self._processor.image(image, job.options)

    def _frames(self, processor: MediaProcessor, job: MediaJob) -> SeenFrames:
        def choose(facts: VideoFacts) -> list[int]:
            return processor.chosen_frames(facts, job.options)

        return read_video(
            job.data, choose, self._max_pixels, self._max_seconds, lambda all_, seen: video_limits(all_, seen).apply()
        )

    def _sound(self, data: bytes, rate: int) -> Array:
        return read_sound(data, rate, self._max_seconds, lambda seconds: sound_limits(seconds).apply())


def _load(start: bytearray) -> _MediaFiles:
    """Raises ModelError, RequestError or MemoryError."""
    said = msgspec.msgpack.decode(start, type=MediaStart)
    if said.with_torch or "audio" in said.modalities or "video" in said.modalities:
        _WITH_TORCH.apply()
        if said.with_torch or "video" in said.modalities:
            from tessera.media.pixel_transforms import stand_in  # not at the top: it loads torch

            stand_in()
    else:
        # transformers then does not load torch, which takes seconds and 300 MB. What it does to images is done by
        # Pillow and NumPy.
        sys.modules["torch"] = None  # type: ignore[assignment]  # importlib's way to say that there is none
    return _MediaFiles(said)


def main() -> int:
    """Runs the process and returns its exit code."""
    return run(MEDIA, _load)
