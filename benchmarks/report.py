"""The table: medians of the rounds with their spread, and ours divided by each other's in the same round."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence

from benchmarks.record import Cell, Record

OURS = "tessera"
LIMIT = "limit"
IDLE = 0.05  # of the machine; with more in use the figures are marked

Value = Callable[[Cell], float | None]


def report(record: Record, batches: Sequence[int]) -> str:
    """All of it, as text to print."""
    setup, cells = record.setup, [cell for cell in record.cells if cell.batch in batches]
    rounds = len({cell.round for cell in cells})
    lines = [
        f"{setup.model}, {setup.dtype}, {setup.input} tokens in, {setup.output} out",
        f"Rounds: {rounds}; median (lowest-highest); N.NNx: {OURS} divided by this one, round by round",
        "",
        *_rates("Decode, tokens/s", cells, batches, lambda cell: cell.decode),
        "",
        *_rates("Prefill, tokens/s", cells, batches, lambda cell: cell.prefill),
        "",
        *_aligned(["Engine", "load, s", "peak, GiB", "version"], [_about(name, cells) for name in _names(cells)]),
        "",
        *_surroundings(record, cells),
    ]
    return "\n".join(line.rstrip() for line in lines)


def spread(values: Sequence[float]) -> str:
    """Median (lowest-highest), with three digits that matter."""
    low, middle, high = (_number(value) for value in (min(values), statistics.median(values), max(values)))
    return middle if low == high else f"{middle} ({low}-{high})"


def ratio(cells: Iterable[Cell], engine: str, batch: int, value: Value) -> float | None:
    """Median over the rounds that both ran of ours divided by the other's; None where they share none."""
    by_round: dict[int, dict[str, float]] = {}
    for cell in cells:
        measured = value(cell)
        if cell.batch == batch and cell.engine in (OURS, engine) and measured is not None:
            by_round.setdefault(cell.round, {})[cell.engine] = measured
    shares = [both[OURS] / both[engine] for both in by_round.values() if OURS in both and engine in both]
    return statistics.median(shares) if shares else None


def _rates(title: str, cells: list[Cell], batches: Sequence[int], value: Value) -> list[str]:
    def entry(engine: str, batch: int) -> str:
        values = _values(cells, engine, value, batch)
        if not values:
            return "-"
        share = None if engine == OURS else ratio(cells, engine, batch, value)
        return spread(values) + ("" if share is None else f"  {share:.2f}x")

    rows = [[name, *(entry(name, batch) for batch in batches)] for name in _names(cells)]
    return _aligned([title, *(f"batch {batch}" for batch in batches)], rows)


def _names(cells: list[Cell]) -> list[str]:
    """Ours first, the limits last, the others in the order in which they ran."""
    names = dict.fromkeys(cell.engine for cell in cells)
    return sorted(names, key=lambda name: (name != OURS, name == LIMIT))


def _about(engine: str, cells: list[Cell]) -> list[str]:
    own = [cell for cell in cells if cell.engine == engine]
    peaks = [cell.peak_bytes / 2**30 for cell in own if cell.peak_bytes is not None]
    loads = "-" if engine == LIMIT else spread([cell.load_s for cell in own])
    versions = "; ".join(dict.fromkeys(cell.version for cell in own))
    return [engine, loads, _number(max(peaks)) if peaks else "-", versions]


def _surroundings(record: Record, cells: list[Cell]) -> list[str]:
    lines = [f"Machine: {record.setup.machine}"]
    measured: dict[str, list[float]] = {}
    for cell in cells:
        for name, value in cell.limits.items():
            measured.setdefault(name, []).append(value)
    lines += [f"  {name}: {spread(values)}" for name, values in measured.items()]
    times = sorted(cell.time for cell in cells)
    if times:
        lines.append(f"Measured: {times[0]} to {times[-1]}")
    lines.append(_idleness([cell.busy for cell in cells]))
    lacking = dict.fromkeys((cell.engine, what) for cell in cells for what in cell.missing)
    lines += [f"Not tuned as its documentation says: {engine}: {what}" for engine, what in lacking]
    lines.append(f"Rounds: {record.path.name}")
    return lines


def _idleness(shares: Sequence[float | None]) -> str:
    known = [share for share in shares if share is not None]
    if not known:
        return "Whether the machine was idle is not known."
    most = max(known)
    if most > IDLE:
        return f"NOT IDLE, THE FIGURES ARE PRELIMINARY: others used up to {most:.0%} of the machine before a run"
    return f"Idle: others used at most {most:.0%} of the machine before a run"


def _values(cells: Iterable[Cell], engine: str, value: Value, batch: int) -> list[float]:
    own = (value(cell) for cell in cells if cell.engine == engine and cell.batch == batch)
    return [measured for measured in own if measured is not None]


def _number(value: float) -> str:
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _aligned(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    table = [header, *rows]
    widths = [max(len(row[column]) for row in table) for column in range(len(header))]
    return ["   ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in table]
