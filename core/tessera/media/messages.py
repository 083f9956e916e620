"""What a media worker is sent and answers, and its limits. Nothing here loads Pillow or transformers."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import msgspec

from tessera.arrays import decode_array, encoder
from tessera.errors import MediaLimitError, MediaWorkerError
from tessera.media.item import MediaReady, ProcessedMedia
from tessera.processes.job_kind import Failed, JobKind
from tessera.processes.job_limits import MIB, JobLimits

if TYPE_CHECKING:
    from tessera.config import ModelConfig

MAX_PIXELS = 2**26
"""The most that an image may have, of any server."""


class MediaStart(msgspec.Struct):
    """What a worker begins with."""

    # The model's.
    folder: str
    # Arguments of the model's processor, besides its own.
    options: dict[str, Any] = {}
    # The most that an image may have.
    max_pixels: int = MAX_PIXELS

    @classmethod
    def from_model(cls, model: ModelConfig) -> MediaStart | None:
        """None if the model's prompts have no images."""
        if not model.most_media("image"):
            return None
        return cls(model.path, dict(model.mm_processor_kwargs or {}))


class ImageJob(msgspec.Struct, tag="image"):
    """An image to process."""

    # A file: PNG, JPEG, ...
    data: bytes
    # Further arguments of the processor.
    options: dict[str, Any] = {}


class MediaDone(msgspec.Struct, tag="done"):
    """An image that was processed."""

    media: ProcessedMedia


def pixel_limits(pixels: int) -> JobLimits:
    """Of an image of so many pixels: several times what processors need, which is 15 to 30 bytes and some tens of
    nanoseconds a pixel. A small image is enlarged or cut into a dozen tiles, so all have some."""
    return JobLimits(10 + pixels // 2**21, 1024 * MIB + 40 * pixels)


def _limits(_job_bytes: int) -> JobLimits:
    """The most; the worker narrows them once it knows how large the image is."""
    return pixel_limits(MAX_PIXELS)


def _encode(message: Any) -> bytes:
    return encoder().encode(message)


def _ready(data: bytes) -> MediaReady | Failed:
    answer: MediaReady | Failed = msgspec.msgpack.decode(data, type=MediaReady | Failed)
    return answer


def _done(data: bytes) -> MediaDone | Failed:
    answer: MediaDone | Failed = msgspec.msgpack.decode(data, type=MediaDone | Failed, dec_hook=decode_array)
    return answer


MEDIA: JobKind[MediaReady, MediaDone] = JobKind(
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
            # So that glibc returns what a large image took.
            "MALLOC_MMAP_THRESHOLD_": str(MIB),
        }
    ),
    loading=JobLimits(60, 4096 * MIB),
    limits=_limits,
    narrowed=True,
    encode=_encode,
    decode_ready=_ready,
    decode=_done,
    files="The image processor and the tokenizer",
    work="Processing this image",
    limit_error=MediaLimitError,
    worker_error=MediaWorkerError,
    overloaded="Too many images wait to be processed; try again.",
)
