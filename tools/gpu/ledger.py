"""The results of conformance cases, on disk as they come."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

BEGUN = "begun"
"""The status of a case that has no result yet."""
Line = dict[str, Any]


class Ledger:
    """Lines of JSON: a case that begins, then its result. Several processes may write to one file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> dict[str, Line]:
        """The last line of each case, by id. A line that is being written is left out."""
        if not self.path.exists():
            return {}
        whole = self.path.read_text(encoding="utf-8").rpartition("\n")[0]
        return {line["id"]: line for line in map(json.loads, whole.splitlines())}

    def add(self, line: Line) -> None:
        file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            os.write(file, f"{json.dumps(line)}\n".encode())
        finally:
            os.close(file)

    def died(self, ids: Iterable[str]) -> None:
        """Records as failed those of these cases that began, and whose process then ended."""
        known = self.read()
        for name in ids:
            if known.get(name, {}).get("status") == BEGUN:
                self.add({**known[name], "status": "failed", "text": "its process ended, or was ended, in this case"})
