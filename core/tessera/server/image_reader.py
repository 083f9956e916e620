"""The images of chats: from the URLs in a request to what the model takes of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tessera.errors import RequestError
from tessera.media.fetch import MediaFetcher
from tessera.media.item import MAX_INPUT_BYTES, input_bytes

if TYPE_CHECKING:
    from tessera.config import ModelConfig
    from tessera.media.item import MediaReady, ProcessedMedia
    from tessera.media.rules import MediaRules
    from tessera.media.workers import MediaWorkers


class ImageReader:
    """Reads and processes images for one model."""

    def __init__(self, workers: MediaWorkers, rules: MediaRules, model: ModelConfig) -> None:
        """Raises ConfigError."""
        self._workers = workers
        self._fetcher = MediaFetcher(rules)
        self._max_images = model.most_media("image")

    async def ready(self) -> MediaReady:
        """How the model's prompts hold images. Raises ModelError or MediaWorkerError."""
        return await self._workers.ready()

    async def read(self, urls: Sequence[str], client: str) -> list[ProcessedMedia]:
        """One after the other, so that a request holds no more than one file. client: who takes turns with others.
        Raises RequestError that says which image it is, MediaWorkerError or OverloadedError."""
        if len(urls) > self._max_images:
            raise RequestError(f"A prompt has at most {self._max_images} images here.", param="messages")
        media: list[ProcessedMedia] = []
        size = 0
        for number, url in enumerate(urls, 1):
            try:
                media.append(await self._workers.image(await self._fetcher.read(url), owner=client))
            except RequestError as error:
                raise type(error)(f"Image {number}: {error.message}", param="messages", code=error.code) from error
            size += input_bytes(media[-1].inputs)
            if size > MAX_INPUT_BYTES:
                raise RequestError(
                    f"The first {number} images together are larger than a request may be; make them smaller.",
                    param="messages",
                )
        return media
