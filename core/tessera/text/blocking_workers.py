"""The text workers, and the media worker, for callers without an event loop."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Callable, Coroutine, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeVar

from tessera.config.modalities import NOUNS
from tessera.errors import RequestError
from tessera.media.item import MediaReady, ProcessedMedia
from tessera.media.messages import MediaStart
from tessera.media.workers import MediaWorkers
from tessera.sampling_params import SamplingParams
from tessera.text.tokenizer import EncodedPair, TruncationSide
from tessera.text.worker import ChatJob, Encoded, Start
from tessera.text.workers import TextWorkers
from tessera.text_pair import TextPair

T = TypeVar("T")


class BlockingTextWorkers:
    """TextWorkers for callers without an event loop: runs one on its own thread. Safe to use from several threads."""

    def __init__(self, start: Start, media: MediaStart | None = None) -> None:
        """Returns before the worker is ready; see ready(). media: starts a media worker too. Raises ModelError or
        TextWorkerError."""
        self._workers = TextWorkers(start)
        self._media = None if media is None else MediaWorkers(media)
        self.vocabulary = self._workers.vocabulary
        # How prompts hold images and sounds, if they may.
        self.media: MediaReady | None = None
        self._loop = asyncio.new_event_loop()
        thread = threading.Thread(target=self._loop.run_forever, name="text workers", daemon=True)
        thread.start()
        # Runs when this process ends, at the latest: a script need not close what it uses to its end.
        ended = [self._workers.close, *([] if self._media is None else [self._media.close])]
        self._cleanup = weakref.finalize(self, _end_blocking, ended, self._loop, thread)

    @property
    def restarts(self) -> int:
        return self._workers.restarts

    def ready(self) -> None:
        """See TextWorkers, also for the other methods."""
        self._run(self._workers.ready())
        if self._media is not None:
            self.media = self._run(self._media.ready())

    def chat(self, job: ChatJob) -> Encoded:
        return self._run(self._workers.chat(job))

    def encode(
        self,
        texts: Sequence[str],
        add_special_tokens: bool = True,
        *,
        max_tokens: int | None = None,
        truncation_side: TruncationSide | None = None,
        placeholders: Mapping[str, str] = MappingProxyType({}),
        replacements: Mapping[str, list[str]] = MappingProxyType({}),
    ) -> list[list[int]]:
        return self._run(
            self._workers.encode(
                texts,
                add_special_tokens,
                max_tokens=max_tokens,
                truncation_side=truncation_side,
                placeholders=placeholders,
                replacements=replacements,
            )
        )

    def encode_pairs(
        self,
        pairs: Sequence[TextPair],
        *,
        max_tokens: int | None = None,
        truncation_side: TruncationSide | None = None,
    ) -> list[EncodedPair]:
        return self._run(
            self._workers.encode_pairs(pairs, max_tokens=max_tokens, truncation_side=truncation_side, numbered=True)
        )

    def process(self, modality: str, data: bytes) -> ProcessedMedia:
        """See MediaWorkers. Raises RequestError if there are none."""
        if self._media is None:
            raise RequestError(f"This model takes no {NOUNS[modality]}s.", param="prompts")
        return self._run(self._media.process(modality, data))

    def check_grammar(self, params: SamplingParams) -> SamplingParams:
        return params if params.structured_outputs is None else self._run(self._workers.check_grammar(params))

    def close(self) -> None:
        """Ends the workers at once. May be called again."""
        self._cleanup()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


def _end_blocking(
    ended: Sequence[Callable[[], Coroutine[Any, Any, None]]], loop: asyncio.AbstractEventLoop, thread: threading.Thread
) -> None:
    for close in ended:
        asyncio.run_coroutine_threadsafe(close(), loop).result()
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()
