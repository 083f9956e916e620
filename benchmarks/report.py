"""The tables of a part: medians of the rounds with their spread, ours divided by each other's, and how ours stands to
the best rival of its precision."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence

from benchmarks.agreement import agreement, worst
from benchmarks.parts import Figure, Part
from benchmarks.record import Cell, Record
from benchmarks.task import CHECK_TOKENS, PRECISIONS, checked_length

OURS = "tessera"
LIMIT = "limit"
IDLE = 0.05  # of the machine; with more in use the figures are marked


def report(record: Record, part: Part, batches: Sequence[int]) -> str:
    """All of a part, as text to print."""
    setup, shape = record.setup, record.shapes[part.name]
    cells = [cell for cell in record.cells if cell.part == part.name and cell.batch in batches]
    tables = [line for figure in part.figures for line in [*_figures(figure, part, cells, batches), ""]]
    lines = [
        f"{part.name}: {setup.model}, {setup.dtype}, {shape.input} tokens in, {shape.output} out",
        f"Rounds: {len({cell.round for cell in cells})}; median (lowest-highest); N.NNx: median of {OURS} in the same",
        "precision divided by this one, over the rounds that both ran",
        "",
        *tables,
        *_aligned(["Engine", "bits", "load, s", "peak, GiB", "version"], [_about(row, cells) for row in _rows(cells)]),
        "",
        *_answers(record, cells),
        "",
        *_surroundings(record, cells),
    ]
    return "\n".join(line.rstrip() for line in lines)


def spread(values: Sequence[float]) -> str:
    """Median (lowest-highest), with three digits that matter."""
    low, middle, high = (_number(value) for value in (min(values), statistics.median(values), max(values)))
    return middle if low == high else f"{middle} ({low}-{high})"


def ratio(cells: Iterable[Cell], ours: str, other: str, batch: int, value: str) -> float | None:
    """Of the medians of two rows over the rounds that both ran; None where they share none."""
    by_round: dict[int, dict[str, float]] = {}
    for cell in cells:
        if cell.batch == batch and cell.row in (ours, other) and value in cell.values:
            by_round.setdefault(cell.round, {})[cell.row] = cell.values[value]
    both = [found for found in by_round.values() if len(found) == len({ours, other})]
    if not both:
        return None
    mine, theirs = (statistics.median(found[row] for found in both) for row in (ours, other))
    return mine / theirs


def _figures(figure: Figure, part: Part, cells: list[Cell], batches: Sequence[int]) -> list[str]:
    """The table of a figure, and below it ours divided by the best rival's and by the limit."""

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
        medians = {row: statistics.median(own) for row in rivals if (own := _values(same, row, figure, batch))}
        best = (min if figure.less else max)(medians, key=lambda row: medians[row], default=None)
        shares = [(best, ratio(same, mine, best, batch, figure.name))] if best else []
        shares += [(limit, ratio(same, mine, limit, batch, figure.name))] if limit else []
        found = [f"{share:.2f} of {row}" for row, share in shares if share is not None]
        said += [f"{part.at} {batch} {', '.join(found)}"] if found else []
    return [f"{mine}, of the best in its precision and of the limit: {'; '.join(said)}"] if said else []


def _is_ours(engine: str) -> bool:
    return engine == OURS or engine.startswith(f"{OURS}-")


def _ours(cells: list[Cell], row: str) -> str | None:
    """Our row in the precision of another."""
    precision = next(cell.precision for cell in cells if cell.row == row)
    return next((cell.row for cell in cells if cell.engine == OURS and cell.precision == precision), None)


def _rows(cells: list[Cell]) -> list[str]:
    """By precision; in each ours first, the limit last, the others in the order in which they ran."""
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
    versions = "; ".join(dict.fromkeys(cell.version for cell in own))
    return [row, bits, loads, _number(max(peaks)) if peaks else "-", versions]


def _answers(record: Record, cells: list[Cell]) -> list[str]:
    """How far each row's greedy answers are the reference's."""
    shapes = {cell.part: record.shapes[cell.part] for cell in cells}
    lengths = {part: checked_length(shape.input) for part, shape in shapes.items()}
    reference = next((found for length in lengths.values() if (found := record.references.get(str(length)))), None)
    if reference is None:
        return ["The answers were not compared with a reference: there is no environment transformers among the peers."]
    lines = [
        f"Greedy answers of the processes that were timed, {CHECK_TOKENS} tokens each, beside {reference.version}:",
        "tokens that are the same until an answer parts, and by how many nats the token where it parts is less likely",
    ]
    for row in _rows(cells):
        own = [cell for cell in cells if cell.row == row and cell.answers]
        if own:
            found = worst([agreement(cell.answers, reference) for cell in own])
            verdict = "" if found.holds(own[0].precision) else "  WRONG"
            lines.append(f"  {row}: {found.equal} of {found.compared}, {found.gap:.3f}{verdict}")
    return lines


def _surroundings(record: Record, cells: list[Cell]) -> list[str]:
    lines = [f"Machine: {record.setup.machine}"]
    measured: dict[str, list[float]] = {}
    for cell in cells:
        for name, value in (cell.machine | cell.limits).items():
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
