"""The images, videos and sounds of chats: from what a request has of them to what the model takes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from tessera.config.modalities import NOUNS
from tessera.errors import RequestError
from tessera.media.data_url import decode_base64
from tessera.media.fetch import MediaFetcher
from tessera.media.item import MAX_INPUT_BYTES, input_bytes
from tessera.media.kinds import KINDS

if TYPE_CHECKING:
    from tessera.config import ModelConfig
    from tessera.media.item import MediaReady, ProcessedMedia
    from tessera.media.rules import MediaRules
    from tessera.media.workers import MediaWorkers


class MediaSource(NamedTuple):
    """An image, a video or a sound as a request has it."""

    # "image", "video" or "audio"
    modality: str
    # Where its file is; "" for one that the request holds.
    url: str = ""
    # The file in base64.
    data: str = ""


class MediaReader:
    """Reads and processes images, videos and sounds for one model."""

    def __init__(self, workers: MediaWorkers, rules: MediaRules, model: ModelConfig) -> None:
        """Raises ConfigError."""
        self._workers = workers
        self._fetcher = MediaFetcher(rules)
        self._max_bytes = rules.max_bytes
        self._limits = {modality: limit for modality in model.modalities if (limit := model.most_media(modality))}

    @property
    def modalities(self) -> Sequence[str]:
        """What the model's prompts may hold."""
        return tuple(self._limits)

    async def ready(self) -> MediaReady:
        """How the model's prompts hold them. Raises ModelError or MediaWorkerError."""
        return await self._workers.ready()

    async def read(self, sources: Sequence[MediaSource], client: str) -> list[ProcessedMedia]:
        """One after the other, so that a request holds no more than one file. sources: of the modalities that there
        are. client: who takes turns with others. Raises RequestError that says which one it is, MediaWorkerError or
        OverloadedError."""
        for modality, count in Counter(source.modality for source in sources).items():
            if count > self._limits[modality]:
                raise RequestError(
                    f"A prompt has at most {self._limits[modality]} {NOUNS[modality]}s here.", param="messages"
                )
        media: list[ProcessedMedia] = []
        numbers = Counter[str]()
        size = 0
        for source in sources:
            numbers[source.modality] += 1
            try:
                media.append(await self._workers.process(source.modality, await self._file(source), owner=client))
            except RequestError as error:
                name = f"{NOUNS[source.modality].capitalize()} {numbers[source.modality]}"
                raise type(error)(f"{name}: {error.message}", param="messages", code=error.code) from error
            size += input_bytes(media[-1].inputs)
            if size > MAX_INPUT_BYTES:
                nouns = " and ".join(f"{NOUNS[modality]}s" for modality in numbers)
                raise RequestError(
                    f"The first {len(media)} {nouns} together are larger than a request may be; make them smaller.",
                    param="messages",
                )
        return media

    async def _file(self, source: MediaSource) -> bytes:
        kind = KINDS[source.modality]
        if source.url:
            return await self._fetcher.read(source.url, kind)
        return decode_base64(source.data, kind, self._max_bytes)
