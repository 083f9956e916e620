"""NamePatterns in quantization_config, whose author is not trusted."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from tessera.errors import ModelError, printable

MAX_PATTERN = 1000
"""The longest pattern, in characters."""
MATCHING_SECONDS = 5.0
"""Processor time that all patterns of a config.json may take together."""


class NamePatterns:
    """Compiles and matches the patterns of one config.json, whose author is not trusted: with regex, which can be
    stopped while it matches, as re cannot."""

    def __init__(self) -> None:
        self._seconds_remaining = MATCHING_SECONDS

    def compiled(self, pattern: str, where: str) -> Any:
        import regex  # type: ignore[import-untyped]  # it has no stubs of its own

        if len(pattern) <= MAX_PATTERN:
            try:
                return self._timed(lambda: regex.compile(pattern), pattern, where)
            except (regex.error, RecursionError, OverflowError):
                pass
        raise ModelError(f"{where} in config.json has a pattern that cannot be used: {printable(pattern, 60)}.")

    def matches(self, pattern: Any, name: str, where: str) -> bool:
        matched = self._timed(lambda: pattern.match(name, timeout=self._seconds_remaining), pattern.pattern, where)
        return matched is not None

    def _timed(self, call: Callable[[], Any], pattern: str, where: str) -> Any:
        began = time.process_time()
        try:
            if self._seconds_remaining > 0:
                return call()
        except TimeoutError:
            pass
        finally:
            self._seconds_remaining -= time.process_time() - began
        raise ModelError(f"{where} in config.json has patterns that take too long to match: {printable(pattern, 60)}.")
