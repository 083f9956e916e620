"""Copies of the LoRA adapters that were loaded for a model over HTTP. They outlive the engine that they were tried on,
and, where a server has several models, the model's time in memory."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

UNREAD_SECONDS = 600.0
"""After the last request for an adapter: by then the engine has ended the step that may have read it, or has been
replaced."""


class AdapterCopies:
    """Those of one model, each in a folder of its own. is_taken: whether a name belongs to another model of the
    server."""

    def __init__(self, is_taken: Callable[[str], bool] = lambda _: False) -> None:
        self.is_taken = is_taken
        self.by_name: dict[str, Path] = {}
        """The adapters that requests may name."""
        self._folder: Path | None = None
        # Those that no request uses any more, each with the time since when, in seconds on time.monotonic().
        self._retired: list[tuple[float, Path]] = []

    def make_folder(self) -> Path:
        """A folder for one more copy."""
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="tessera-adapters-"))
        return Path(tempfile.mkdtemp(dir=self._folder))

    def retire(self, copy: Path) -> None:
        """No request has it any more. It goes after a time, unless it is still served."""
        if copy not in self.by_name.values():
            self._retired.append((time.monotonic(), copy))

    def remove_retired(self) -> None:
        due = time.monotonic() - UNREAD_SECONDS
        for since, copy in self._retired:
            if since <= due:
                shutil.rmtree(copy, ignore_errors=True)
        self._retired = [(since, copy) for since, copy in self._retired if since > due]

    async def close(self) -> None:
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
