"""An executor for steps that core's sampler on the host serves, which reads host tensors."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

from tests.platforms.watched import WatchedExecutor

UNWATCHED = "tests.tpu.unwatched:Unwatched"


class Unwatched(WatchedExecutor):
    def _watching(self) -> AbstractContextManager[Any]:
        return nullcontext()
