"""What a media worker is sent and answers, and its limits. Nothing here loads Pillow, PyAV, soundfile or
transformers."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import msgspec

from tessera.arrays import decode_array, encoder
from tessera.config.modalities import encoder_length, needs_torch
from tessera.config.sound_encoder import SoundEncoder, sound_encoder
from tessera.config.tiled_encoder import TiledEncoder, tiled_encoder
from tessera.errors import MediaLimitError, MediaWorkerError
from tessera.media.item import MediaReady, ProcessedMedia, Waveform
from tessera.media.video import MAX_SEEN_PIXELS
from tessera.processes.job_kind import Failed, JobKind
from tessera.processes.job_limits import MIB, JobLimits

if TYPE_CHECKING:
    from tessera.config import ModelConfig

MAX_PIXELS = 2**26
"""The most that an image may have, of any server."""
MAX_SECONDS = 3600
"""The longest that a sound or a video may be, of any server."""
MAX_VIDEO_TIME = 300
"""Seconds of processor time for a video at most."""
WAVEFORM_RATE = 16_000
"""Samples a second that models of speech take."""


class MediaStart(msgspec.Struct):
    """What a worker begins with."""

    # The model's.
    folder: str
    # The GGUF file of its tower, which says what the processor is; "": the folder has files of it.
    mmproj: str = ""
    # Arguments of the model's processor, besides its own.
    options: dict[str, Any] = {}
    # What its prompts may hold.
    modalities: tuple[str, ...] = ("image",)
    # The most that an image, or a frame of a video, may have.
    max_pixels: int = MAX_PIXELS
    # The longest that a sound or a video may be.
    max_seconds: float = MAX_SECONDS
    # Whether the model's encoder reads sounds, which no text of a prompt stands for.
    has_encoder: bool = False
    # How much that encoder takes at once, and how many positions it makes of it; None: always as many.
    encoder: SoundEncoder | None = None
    # Whether the model's processor of images runs with torch.
    with_torch: bool = False
    # MediaPlaces.tiled of images.
    tiled: TiledEncoder | None = None

    @classmethod
    def from_model(cls, model: ModelConfig) -> MediaStart | None:
        """None if the model's prompts have text alone."""
        served = tuple(name for name in model.modalities if model.most_media(name))
        if not served:
            return None
        return cls(
            model.path,
            model.mmproj,
            dict(model.mm_processor_kwargs or {}),
            served,
            has_encoder=encoder_length(model.checkpoint) > 0,
            encoder=sound_encoder(model.checkpoint),
            with_torch=needs_torch(model.checkpoint),
            tiled=tiled_encoder(model.checkpoint),
        )


class MediaJob(msgspec.Struct, tag="media"):
    """An image, a video or a sound to process."""

    # "image", "video" or "audio"
    modality: str
    # A file: PNG, JPEG, ...; MP4, WebM, ...; WAV, MP3, ...
    data: bytes
    # Further arguments of the processor.
    options: dict[str, Any] = {}


class WaveformJob(msgspec.Struct, tag="waveform"):
    """A sound to decode, and no more: what is too long for a prompt is cut into parts that are processed by
    themselves."""

    # A file: WAV, MP3, ...
    data: bytes
    # Samples a second, of the answer.
    rate: int = WAVEFORM_RATE


class MediaDone(msgspec.Struct, tag="done"):
    """An image, a video or a sound that was processed."""

    media: ProcessedMedia


def pixel_limits(pixels: int) -> JobLimits:
    """Of an image of so many pixels: several times what processors need, which is 15 to 30 bytes and some tens of
    nanoseconds a pixel. A small image is enlarged or cut into a dozen tiles, so all have some."""
    return JobLimits(10 + pixels // 2**21, 1024 * MIB + 40 * pixels)


def sound_limits(seconds: float) -> JobLimits:
    """Of a sound of so many seconds: its samples, decoded and resampled, and several times what makes a spectrum, which
    holds about half a megabyte a second."""
    return JobLimits(20 + int(seconds) // 10, 1024 * MIB + int(seconds) * 2 * MIB)


def video_limits(decoded: int, seen: int) -> JobLimits:
    """Of a video: the pixels of the frames that are decoded, and of those that the model sees. Decoders take some tens
    of nanoseconds for the first; the second are there as bytes, twice, and a processor makes floats of what it leaves
    of them, in three steps."""
    seconds = 20 + decoded // 2**25 + seen // 2**22
    return JobLimits(min(MAX_VIDEO_TIME, seconds), 2048 * MIB + 24 * seen)


def _limits(_job_bytes: int) -> JobLimits:
    """The most; the worker narrows them once it knows how large the image or the video, or how long the sound is."""
    known = pixel_limits(MAX_PIXELS), sound_limits(MAX_SECONDS), video_limits(MAX_SEEN_PIXELS, MAX_SEEN_PIXELS)
    seconds = max(MAX_VIDEO_TIME, *(limits.seconds for limits in known))
    return JobLimits(seconds, max(limits.memory_bytes for limits in known))


def _encode(message: Any) -> bytes:
    return encoder().encode(message)


def _ready(data: bytes) -> MediaReady | Failed:
    answer: MediaReady | Failed = msgspec.msgpack.decode(data, type=MediaReady | Failed)
    return answer


def _done(data: bytes) -> MediaDone | Waveform | Failed:
    kinds = MediaDone | Waveform | Failed
    answer: MediaDone | Waveform | Failed = msgspec.msgpack.decode(data, type=kinds, dec_hook=decode_array)
    return answer


MEDIA: JobKind[MediaReady, MediaDone | Waveform] = JobKind(
    name="media worker",
    module="tessera.media",
    variables=MappingProxyType(
        {
            "PYTHONSAFEPATH": "1",
            # Nothing is downloaded: a model's folder has all that its processor needs.
            "HF_HUB_OFFLINE": "1",
            "TRANSFORMERS_VERBOSITY": "error",
            # Threads would each use memory, and processor time would no longer match elapsed time.
            "TOKENIZERS_PARALLELISM": "false",
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
            "MKL_NUM_THREADS": "1",
            # So that glibc returns what a large image or a long sound took.
            "MALLOC_MMAP_THRESHOLD_": str(MIB),
        }
    ),
    loading=JobLimits(120, 4096 * MIB),
    limits=_limits,
    narrowed=True,
    encode=_encode,
    decode_ready=_ready,
    decode=_done,
    files="The processor of images, videos or sounds and the tokenizer",
    work="Processing this file",
    limit_error=MediaLimitError,
    worker_error=MediaWorkerError,
    overloaded="Too many images, videos and sounds wait to be processed; try again.",
)
