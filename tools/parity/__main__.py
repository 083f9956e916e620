"""`python -m tools.parity`: prints the table."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers.utils import logging

from tools.parity.compare import MAX_EXCUSED, TOLERANCE, Cell
from tools.parity.encoder_decoders import ENCODER_DECODERS
from tools.parity.families import FAMILIES
from tools.parity.family import save_model
from tools.parity.modes import MODES, PLATFORMS, Subject
from tools.parity.omni import WITH_BOTH
from tools.parity.oracle import NUM_TOKENS, ask_family
from tools.parity.rounding import (
    DTYPES,
    EXACT,
    FAR,
    MORE_FAR,
    MOST_TYPICAL,
    ROUNDING_MODES,
    RoundingCell,
    measure_rounding,
)
from tools.parity.sounds import WITH_SOUNDS
from tools.parity.through_transformers import THROUGH_TRANSFORMERS
from tools.parity.videos import WITH_VIDEOS
from tools.parity.vision import WITH_IMAGES

_TABLES = (
    FAMILIES, WITH_IMAGES, WITH_VIDEOS, WITH_SOUNDS, WITH_BOTH, ENCODER_DECODERS, THROUGH_TRANSFORMERS,
)  # fmt: skip
EVERY_FAMILY = {name: family for table in _TABLES for name, family in table.items()}
assert len(EVERY_FAMILY) == sum(map(len, _TABLES)), "two families have one name"
COLUMNS = (
    "platform", "family", "mode", "prompts", "logits", "max |diff|", "bound", f"{NUM_TOKENS} tokens equal", "excused",
    "", "ok",
)  # fmt: skip
LEFT_ALIGNED = ("platform", "family", "mode", "", "ok")
ROUNDING_COLUMNS = ("platform", "family", "mode", "prompts", "logits", "error", "theirs", "far", "theirs", "ok")


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 0 if every cell holds."""
    options = _options(arguments)
    logging.disable_progress_bar()
    torch.set_num_threads(1)  # the models are too small to use more
    began = time.monotonic()
    cells = []
    for family in options.family:
        with tempfile.TemporaryDirectory() as folder:
            cells += measure(family, Path(folder), options)
    _progress("")
    if options.dtype == EXACT:
        print(table(by_family(cells) if options.brief else cells))
    else:
        print(rounding_table(cells))
    failed = sum(not cell.ok for cell in cells)
    print(f"\n{len(cells)} cells, {failed} failed, {time.monotonic() - began:.0f} s")
    return 1 if failed else 0


def measure(family: str, folder: Path, options: argparse.Namespace) -> list[Any]:
    """Measures the family's cells. Saves its model in folder."""
    _progress(f"{family}: asking transformers")
    asked = EVERY_FAMILY[family]
    model = save_model(asked, folder)
    answers = ask_family(asked, model, options.prompts)
    cells: list[Any] = []
    for platform in options.platform:
        subject = Subject(folder, PLATFORMS.get(platform, platform), answers, asked.max_model_len)
        for mode in options.mode:
            _progress(f"{family}: {mode} on {platform}")
            where = (platform, family, mode)
            if options.dtype == EXACT:
                cells.append(Cell.from_answers(where, *MODES[mode](subject)))
            else:
                cells.append(RoundingCell.from_answers(where, measure_rounding(subject, model, options.dtype, mode)))
    return cells


def by_family(cells: Sequence[Cell]) -> list[Cell]:
    """Merges all modes of a family on a platform, in the order of the cells."""
    groups: dict[tuple[str, str], list[Cell]] = {}
    for cell in cells:
        groups.setdefault((cell.platform, cell.family), []).append(cell)
    return [Cell.together(group) for group in groups.values()]


def table(cells: Sequence[Cell]) -> str:
    """Aligned text, one line per cell."""
    return _aligned([COLUMNS, *(_row(cell) for cell in cells)])


def rounding_table(cells: Sequence[RoundingCell]) -> str:
    return _aligned([ROUNDING_COLUMNS, *(_rounding_row(cell) for cell in cells)])


def _aligned(rows: Sequence[tuple[str, ...]]) -> str:
    """Aligns names and outcomes to the left, numbers to the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    left = {column for column, name in enumerate(rows[0]) if name in LEFT_ALIGNED}
    return "\n".join(
        "  ".join(
            text.ljust(width) if column in left else text.rjust(width)
            for column, (text, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


def _row(cell: Cell) -> tuple[str, ...]:
    return (
        cell.platform,
        cell.family,
        cell.mode,
        str(cell.prompts),
        str(cell.positions),
        f"{cell.diff:.1e}",
        f"{cell.bound:.1e}",
        f"{cell.equal}/{cell.prompts}",
        f"{cell.excused / cell.prompts:.0%}",
        cell.evidence,
        "ok" if cell.ok else "FAILED",
    )


def _rounding_row(cell: RoundingCell) -> tuple[str, ...]:
    return (
        cell.platform,
        cell.family,
        cell.mode,
        str(cell.prompts),
        str(cell.positions),
        f"{cell.typical:.1e}",
        f"{cell.their_typical:.1e}",
        str(cell.far),
        str(cell.their_far),
        "ok" if cell.ok else "FAILED",
    )


def _progress(text: str) -> None:
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{text}")
    elif text:
        sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tools.parity",
        description="Tessera's logits and greedy tokens against transformers (eager attention, float32), or with "
        "--dtype how far they are from float32 beside transformers' own in that dtype.",
        epilog=f"A cell holds where, for every prompt, max |diff| is at most {TOLERANCE} x max(1, max |logit|) and all "
        f"tokens are equal. A prompt's comparison may stop where the oracle's two best logits are within {TOLERANCE}: "
        f"at most {MAX_EXCUSED:.0%} of prompts. With another dtype a cell holds where the median over all "
        f"positions of the logits' root mean square error is at most {MOST_TYPICAL} times transformers' and positions "
        f"beyond {FAR:g} times that are at most {MORE_FAR:.0%} of all more than transformers'.",
    )
    families = [*EVERY_FAMILY]
    parser.add_argument("--family", action="append", choices=families, help="may be repeated; default: all native ones")
    parser.add_argument(
        "--through-transformers", action="store_true", help="all types that run through transformers' code instead"
    )
    parser.add_argument(
        "--platform", action="append", help=f"{', '.join(PLATFORMS)} or package.module:Class; default: cpu and strict"
    )
    parser.add_argument(
        "--mode",
        action="append",
        help=f"{', '.join(MODES)}; may be repeated; default: all, or {', '.join(ROUNDING_MODES)}",
    )
    parser.add_argument("--dtype", choices=[EXACT, *DTYPES], default=EXACT, help="(default: %(default)s)")
    parser.add_argument("--brief", action="store_true", help="all modes together; in float32")
    parser.add_argument("--prompts", type=int, default=50, help="of uneven lengths (default: %(default)s)")
    options = parser.parse_args(arguments)
    options.family = options.family or [*(THROUGH_TRANSFORMERS if options.through_transformers else FAMILIES)]
    options.platform = options.platform or ["cpu", "strict"]
    known_modes = MODES if options.dtype == EXACT else ROUNDING_MODES
    options.mode = options.mode or [*known_modes]
    if unknown := set(options.mode) - set(known_modes):
        parser.error(
            f"no such mode in {options.dtype}: {', '.join(sorted(unknown))}; there are {', '.join(known_modes)}."
        )
    return options


if __name__ == "__main__":
    sys.exit(main())
