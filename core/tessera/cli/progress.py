"""How far the start has come, on one line of a terminal, or a line a phase elsewhere."""

from __future__ import annotations

from tessera.log import LastingStream
from tessera.platform import Progress

_WIDTH = 30


class ProgressLine:
    """Give it to the engine as on_progress; close() clears the line. What others write meanwhile overwrites it."""

    def __init__(self, stream: LastingStream) -> None:
        self._stream = stream
        self._drawn = stream.isatty()
        self._phase = ""

    def __call__(self, progress: Progress) -> None:
        if self._drawn:
            share = progress.done / progress.total if progress.total else 0.0
            bar = "█" * round(share * _WIDTH)
            self._write(f"\r\x1b[K  {_name(progress):<12} {bar:<{_WIDTH}} {share:4.0%}\r")
        elif progress.phase != self._phase:
            self._write(f"{_name(progress)} ...\n")
        self._phase = progress.phase

    def close(self) -> None:
        if self._drawn and self._phase:
            self._write("\r\x1b[K")

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


def _name(progress: Progress) -> str:
    return progress.phase.replace("_", " ")
