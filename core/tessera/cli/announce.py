"""What `serve` says beside its log: to a user at a terminal, or as lines of the log where programs read all of it."""

from __future__ import annotations

import logging
import sys

from tessera.cli.progress import ProgressLine
from tessera.log import JSON, LastingStream
from tessera.platform import Progress

log = logging.getLogger(__name__)


class ToUser:
    """The report on stdout, the rest on stderr."""

    def __init__(self) -> None:
        self._line = ProgressLine(LastingStream(sys.stderr))

    def warn(self, text: str) -> None:
        LastingStream(sys.stderr).print(f"warning: {text}")

    def progress(self, progress: Progress) -> None:
        self._line(progress)

    def explain(self, table: str) -> None:
        LastingStream(sys.stdout).print(f"{table}\n")

    def ready(self, report: str) -> None:
        LastingStream(sys.stdout).print(report)

    def close(self) -> None:
        """The start is over, whatever came of it."""
        self._line.close()


class ToLog:
    """A record each."""

    def __init__(self) -> None:
        self._phase = ""

    def warn(self, text: str) -> None:
        log.warning(text)

    def progress(self, progress: Progress) -> None:
        if progress.phase != self._phase:
            self._phase = progress.phase
            log.info("%s", progress.phase)

    def explain(self, table: str) -> None:
        for line in table.splitlines():
            log.info("chosen: %s", line)

    def ready(self, report: str) -> None:
        log.info("ready: %s", report)

    def close(self) -> None:
        """Nothing is open."""


def announcer(form: str) -> ToUser | ToLog:
    """form: of the log."""
    return ToLog() if form == JSON else ToUser()
