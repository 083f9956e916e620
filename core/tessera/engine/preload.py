"""The longest import of a start, while the process waits for its configuration."""

from __future__ import annotations

import threading

from tessera.plugins import load_path


class Preload(threading.Thread):
    """Imports what a dotted path names. Until finish() nothing else of the process may import much: modules that import
    each other could be seen half made."""

    def __init__(self, path: str) -> None:
        super().__init__(name="preload", daemon=True)
        self._path = path
        self._error: BaseException | None = None

    def run(self) -> None:
        try:
            load_path(self._path)
        except BaseException as error:  # noqa: BLE001  # finish() raises it, where it can be told
            self._error = error

    def finish(self) -> None:
        """Waits for it. Raises what the import raised."""
        self.join()
        if self._error is not None:
            raise self._error
