"""Tables of transformers' types in a page of the documentation, between two comments, each row decided by the code that
decides at load."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import transformers


@dataclass(frozen=True)
class Page:
    """Where a table stands."""

    path: Path
    # Comments on lines of their own, before and behind it.
    begin: str
    end: str

    def written(self) -> str:
        """The table that the page has now."""
        return self.path.read_text(encoding="utf-8").partition(self.begin)[2].partition(self.end)[0].strip()

    def write(self, table: str) -> None:
        before, _, rest = self.path.read_text(encoding="utf-8").partition(self.begin)
        behind = rest.partition(self.end)[2]
        self.path.write_text(f"{before}{self.begin}\n\n{table}\n\n{self.end}{behind}", encoding="utf-8")


def rendered(heading: str, titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """heading: a line above the table."""
    lines = (f"| {' | '.join(cells)} |" for cells in (titles, *rows))
    first, *others = lines
    return "\n".join([heading, "", first.replace("|  |", "| |"), "|---" * len(titles) + "|", *others])


def read_cells(table: str) -> list[list[str]]:
    """The cells of a rendered table, without its titles."""
    cells = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines() if line.startswith("|")
    ]
    return cells[2:]


def version() -> str:
    return str(transformers.__version__)
