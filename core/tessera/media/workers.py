"""The front end's side of the media worker."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from tessera.config.modalities import NOUNS
from tessera.errors import ModelError, RequestError
from tessera.media.item import MediaReady, ProcessedMedia, Waveform
from tessera.media.messages import MEDIA, WAVEFORM_RATE, MediaDone, MediaJob, MediaStart, WaveformJob
from tessera.processes.job_kind import Failed
from tessera.processes.job_queue import JobQueue


class MediaWorkers:
    """A front end's access to a model's processor. Clients take turns. The worker starts loading at once."""

    def __init__(self, start: MediaStart) -> None:
        """Raises MediaWorkerError."""
        self._modalities, self._has_encoder = start.modalities, start.has_encoder
        self._queue = JobQueue(MEDIA, start)
        self._queue.begin()

    async def __aenter__(self) -> Self:
        try:
            await self.ready()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def restarts(self) -> int:
        """Number of workers that were replaced."""
        return self._queue.restarts

    async def ready(self) -> MediaReady:
        """Waits until the worker has loaded the model's files. Raises ModelError or MediaWorkerError."""
        try:
            return await self._queue.load()
        except ModelError as error:
            if self._has_encoder:
                raise
            none = ", ".join(f'"{modality}": 0' for modality in self._modalities)
            others = "without videos it is served with --limit-mm-per-prompt '{\"video\": 0}', "
            raise ModelError(
                f"{error.message.rstrip('.')}; {others if self._modalities[1:] == ('video',) else ''}the text model "
                f"alone is served with --limit-mm-per-prompt '{{{none}}}'."
            ) from error

    async def process(
        self, modality: str, data: bytes, options: Mapping[str, Any] | None = None, owner: str = ""
    ) -> ProcessedMedia:
        """What the model takes of an image, a video or a sound. data: a file, of which nothing is kept. options: of
        the processor. owner: the client, who takes turns with the others. Raises RequestError, MediaLimitError,
        MediaWorkerError or OverloadedError."""
        if modality not in self._modalities:
            raise RequestError(f"This model takes no {NOUNS[modality]}s in a prompt.")
        try:
            job = MEDIA.framed(MediaJob(modality, data, dict(options or {})))
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise RequestError(
                "mm_processor_kwargs holds a value that is no JSON.", param="mm_processor_kwargs"
            ) from error
        answer = await self._queue.ask(job, owner)
        if isinstance(answer, Failed):
            raise answer.failure.error()
        assert isinstance(answer, MediaDone)
        return answer.media

    async def waveform(self, data: bytes, rate: int = WAVEFORM_RATE, owner: str = "") -> Waveform:
        """A sound, decoded, at `rate` samples a second. Raises as process() does."""
        answer = await self._queue.ask(MEDIA.framed(WaveformJob(data, rate)), owner)
        if isinstance(answer, Failed):
            raise answer.failure.error()
        assert isinstance(answer, Waveform)
        return answer

    async def close(self) -> None:
        """Ends the worker at once. May be called again."""
        await self._queue.close()
