"""The text workers for callers without an event loop."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

from tessera.sampling_params import SamplingParams
from tessera.text.tokenizer import EncodedPair, TruncationSide
from tessera.text.worker import ChatJob, Encoded, Start
from tessera.text.workers import TextWorkers
from tessera.text_pair import TextPair

T = TypeVar("T")


class BlockingTextWorkers:
    """TextWorkers for callers without an event loop: runs one on its own thread. Safe to use from several threads."""

    def __init__(self, start: Start) -> None:
        """Returns before the worker is ready; see ready(). Raises ModelError or TextWorkerError."""
        self._workers = TextWorkers(start)
        self.vocabulary = self._workers.vocabulary
        self._loop = asyncio.new_event_loop()
        thread = threading.Thread(target=self._loop.run_forever, name="text workers", daemon=True)
        thread.start()
        # Runs when this process ends, at the latest: a script need not close what it uses to its end.
        self._cleanup = weakref.finalize(self, _end_blocking, self._workers, self._loop, thread)

    @property
    def restarts(self) -> int:
        return self._workers.restarts

    def ready(self) -> None:
        """See TextWorkers, also for the other methods."""
        self._run(self._workers.ready())

    def chat(self, job: ChatJob) -> Encoded:
        return self._run(self._workers.chat(job))

    def encode(
        self,
        texts: Sequence[str],
        add_special_tokens: bool = True,
        *,
        max_tokens: int | None = None,
        truncation_side: TruncationSide | None = None,
        placeholder: str = "",
        replacements: Sequence[str] = (),
    ) -> list[list[int]]:
        return self._run(
            self._workers.encode(
                texts,
                add_special_tokens,
                max_tokens=max_tokens,
                truncation_side=truncation_side,
                placeholder=placeholder,
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

    def check_grammar(self, params: SamplingParams) -> SamplingParams:
        return params if params.structured_outputs is None else self._run(self._workers.check_grammar(params))

    def close(self) -> None:
        """Ends the workers at once. May be called again."""
        self._cleanup()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


def _end_blocking(workers: TextWorkers, loop: asyncio.AbstractEventLoop, thread: threading.Thread) -> None:
    asyncio.run_coroutine_threadsafe(workers.close(), loop).result()
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()
