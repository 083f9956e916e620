"""Request fields that are neither served nor refused: each may be a slip, so it is logged once and counted."""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Iterable

_LOG = logging.getLogger(__name__)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.\-]{0,63}")
MOST_NAMES = 64
OTHER = "other"


class UnknownFields:
    """How many requests had a field, by its name. From the 65th name on, and for a name that no API would have, that is
    "other", so that clients cannot grow the table."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def add(self, names: Iterable[str]) -> None:
        """Counts the unknown fields of one request."""
        for name in {self._listed_name(name) for name in names}:
            if name not in self.counts:
                _LOG.debug("A request has the field %r, which is not known and has no effect.", name)
            self.counts[name] += 1

    def _listed_name(self, name: str) -> str:
        if name in self.counts:
            return name
        return name if len(self.counts) < MOST_NAMES and _NAME.fullmatch(name) else OTHER
