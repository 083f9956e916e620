"""The tables of a part: medians of the rounds with their spread, our result divided by each other engine's, and ours
compared with the best rival of the same precision."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence

from benchmarks.agreement import worst
from benchmarks.parts import Figure, Part
from benchmarks.record import Cell, Record
from benchmarks.task import CHECK_TOKENS, PRECISIONS, WIDEST

OURS = "tessera"
LIMIT = "limit"
IDLE = 0.05  # as a fraction of the machine; figures are marked if more is in use


def report(record: Record, part: Part, batches: Sequence[int]) -> str:
    """The whole report of a part, as text to print."""
    setup, shape = record.setup, record.shapes[part.name]
    cells = [cell for cell in record.cells if cell.part == part.name and cell.batch in batches]
    tables = [line for figure in part.figures for line in [*_figures(figure, part, cells, batches), ""]]
    lines = [
        f"{part.name}: {setup.model}, {setup.dtype}, {shape.input} tokens in, {shape.output} out",
        f"Rounds: {len({cell.round for cell in cells})}; median (lowest-highest); N.NNx: {OURS} in the same precision",
        "divided by this one, each time that both were measured right after each other, the median",
        "",
        *tables,
        *_aligned(["Engine", "bits", "load, s", "peak, GiB", "version"], [_about(row, cells) for row in _rows(cells)]),
        "",
        *_answers(cells),
        "",
        *_surroundings(record, cells),
    ]
    return "\n".join(line.rstrip() for line in lines)


def spread(values: Sequence[float]) -> str:
    """Median (lowest-highest), with three significant digits."""
    low, middle, high = (_number(value) for value in (min(values), statistics.median(values), max(values)))
    return middle if low == high else f"{middle} ({low}-{high})"


def ratio(cells: Iterable[Cell], ours: str, other: str, batch: int, value: str) -> float | None:
    """The ratio of two rows: the median over turns in which both were measured; None if there are none."""
    by_turn: dict[tuple[int, str], dict[str, float]] = {}
    for cell in cells:
        if cell.batch == batch and cell.row in (ours, other) and value in cell.values:
            by_turn.setdefault((cell.round, cell.turn), {})[cell.row] = cell.values[value]
    both = [found[ours] / found[other] for found in by_turn.values() if len(found) == len({ours, other})]
    return statistics.median(both) if both else None


def _figures(figure: Figure, part: Part, cells: list[Cell], batches: Sequence[int]) -> list[str]:
    """The table of a figure, followed by our result divided by the best rival's and by the limit."""

    def entry(row: str, batch: int) -> str:
        values = _values(cells, row, figure, batch)
        mine = _ours(cells, row)
        share = None if mine in (row, None) else ratio(cells, mine or "", row, batch, figure.name)
        return (spread(values) if values else "-") + ("" if share is None else f"  {share:.2f}x")

    rows = [[row, *(entry(row, batch) for batch in batches)] for row in _rows(cells)]
    title = figure.title + (" (less is better)" if figure.less else "")
    table = _aligned([title, *(f"{part.at} {batch}" for batch in batches)], rows)
    return table + [line for precision in PRECISIONS for line in _standing(figure, part, cells, batches, precision)]


def _standing(figure: Figure, part: Part, cells: list[Cell], batches: Sequence[int], precision: str) -> list[str]:
    same = [cell for cell in cells if cell.precision == precision]
    mine = next((cell.row for cell in same if cell.engine == OURS), None)
    rivals = dict.fromkeys(cell.row for cell in same if not _is_ours(cell.engine) and cell.engine != LIMIT)
    limit = next((cell.row for cell in same if cell.engine == LIMIT), None)
    if mine is None:
        return []
    said = []
    for batch in batches:
        shares = {row: share for row in rivals if (share := ratio(same, mine, row, batch, figure.name)) is not None}
        best = (max if figure.less else min)(shares, key=lambda row: shares[row], default=None)
        found = [best] if best else []
        if limit and (share := ratio(same, mine, limit, batch, figure.name)) is not None:
            shares[limit] = share
            found.append(limit)
        said += [f"{part.at} {batch} {', '.join(f'{shares[row]:.2f} of {row}' for row in found)}"] if found else []
    return [f"{mine}, of the best in its precision and of the limit: {'; '.join(said)}"] if said else []


def _is_ours(engine: str) -> bool:
    return engine == OURS or engine.startswith(f"{OURS}-")


def _ours(cells: list[Cell], row: str) -> str | None:
    """Our row in the same precision as another row."""
    precision = next(cell.precision for cell in cells if cell.row == row)
    return next((cell.row for cell in cells if cell.engine == OURS and cell.precision == precision), None)


def _rows(cells: list[Cell]) -> list[str]:
    """Rows sorted by precision; within each, ours first, the limit last and the others in the order they ran."""
    first = {cell.row: cell for cell in reversed(cells)}
    order = list(dict.fromkeys(cell.row for cell in cells))

    def place(row: str) -> tuple[int, bool, bool]:
        cell = first[row]
        return PRECISIONS.index(cell.precision), cell.engine != OURS, cell.engine == LIMIT

    return sorted(order, key=place)


def _about(row: str, cells: list[Cell]) -> list[str]:
    own = [cell for cell in cells if cell.row == row]
    peaks = [cell.peak_bytes / 2**30 for cell in own if cell.peak_bytes is not None]
    bits = next((f"{cell.bits:.2f}" for cell in own if cell.bits is not None), "-")
    loads = "-" if own[0].engine == LIMIT else spread([cell.load_s for cell in own])
    versions = "; ".join(dict.fromkeys(cell.version for cell in own if cell.version))
    return [row, bits, loads, _number(max(peaks)) if peaks else "-", versions]


def _answers(cells: list[Cell]) -> list[str]:
    """How far each row's greedy answers agree with the reference."""
    compared = {
        row: [cell.agreement for cell in cells if cell.row == row and cell.agreement is not None]
        for row in _rows(cells)
        if not row.startswith(f"{LIMIT} ")
    }
    versions = dict.fromkeys(found.reference for own in compared.values() for found in own)
    if not versions:
        return ["The answers were not compared with a reference: there is no environment transformers among the peers."]
    lines = [
        f"Greedy answers of the processes that were timed, {CHECK_TOKENS} tokens each, beside {'; '.join(versions)}:",
        "tokens that are the same until an answer parts, and by how many nats the token where it parts is less likely",
    ]
    for row, own in compared.items():
        if own:
            found = worst(own)
            precision = next(cell.precision for cell in cells if cell.row == row)
            gap = f"more than {WIDEST}" if found.gap is None else f"{found.gap:.3f}"
            lines.append(
                f"  {row}: {found.equal} of {found.compared}, {gap}{'' if found.holds(precision) else '  WRONG'}"
            )
    return lines


def _surroundings(record: Record, cells: list[Cell]) -> list[str]:
    lines = [f"Machine: {record.setup.machine}"]
    measured: dict[str, list[float]] = {}
    for cell in cells:
        for name, value in cell.machine.items():
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


def _values(cells: Iterable[Cell], row: str, figure: Figure, batch: int) -> list[float]:
    own = (cell for cell in cells if cell.row == row and cell.batch == batch)
    return [cell.values[figure.name] for cell in own if figure.name in cell.values]


def _number(value: float) -> str:
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _aligned(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    table = [header, *rows]
    widths = [max(len(row[column]) for row in table) for column in range(len(header))]
    return ["   ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in table]
