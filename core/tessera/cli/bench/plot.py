"""`tessera bench serve --plot`: latency and throughput of one server or two at several request rates, as a picture."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from tessera.cli.bench.drive import Record
from tessera.cli.bench.results import in_milliseconds, serving_figures, spread
from tessera.config.flags import flag
from tessera.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_LINES: Mapping[int, Literal["-", "--", ":"]] = MappingProxyType({50: "-", 95: "--", 99: ":"})
PLOTTED = tuple(_LINES)
"""Percentiles of latencies."""
_COLORS = ("#0072b2", "#d55e00")
"""Of the servers: told apart by those who do not see red or green, too."""
_SENT = "gray"
_SUFFIX = ".svg"
_MAX_RATES = 100


@dataclass(frozen=True)
class PlotOptions:
    """Options of a picture."""

    plot: str | None = flag(
        None, "Draw latency and throughput against the request rate, of each of --rates, as SVG.", group="plot",
        metavar="FILE.svg",
    )  # fmt: skip
    rates: tuple[str, ...] = flag(
        (), "Request rates to measure one after the other, with --num-prompts requests each: 1,2,4,8.", group="plot",
        metavar="RATE", multiple=True,
    )  # fmt: skip
    beside: str | None = flag(
        None, "URL of another server, which is measured in turns with the first and drawn beside it.", group="plot",
        metavar="URL",
    )  # fmt: skip


def checked_rates(options: PlotOptions, *, has_rate: bool) -> list[float]:
    """In ascending order; none without --plot. has_rate: whether --request-rate is given. Raises ConfigError before
    anything slow starts."""
    if options.plot is None:
        for name in ("rates", "beside"):
            if getattr(options, name):
                raise ConfigError(f"--{name} needs --plot FILE.svg.")
        return []
    if not options.plot.endswith(_SUFFIX):
        raise ConfigError(f"--plot '{options.plot}' must end in {_SUFFIX}.")
    if not Path(options.plot).expanduser().parent.is_dir():
        raise ConfigError(f"--plot '{options.plot}': the folder does not exist.")
    if find_spec("matplotlib") is None:
        raise ConfigError("--plot needs Matplotlib: pip install 'tessera-llm[plot]'.")
    if has_rate:
        raise ConfigError("--request-rate has no meaning with --plot; give --rates.")
    rates = {_rate(text) for one in options.rates for text in one.replace(",", " ").split()}
    if not 1 <= len(rates) <= _MAX_RATES:
        raise ConfigError(f"--plot needs 1 to {_MAX_RATES} --rates, such as --rates 1,2,4,8.")
    return sorted(rates)


def _rate(text: str) -> float:
    try:
        rate = float(text)
    except ValueError:
        rate = math.nan
    if not 0 < rate < math.inf:
        raise ConfigError(f"--rates '{text[:40]}' must be requests per second, above 0.")
    return rate


def rate_figures(
    records: Sequence[Record], seconds: float, objectives: Mapping[str, float], rate: float
) -> dict[str, Any]:
    """serving_figures() at one rate, with the percentiles that are drawn."""
    figures = {"request_rate": rate, **serving_figures(records, seconds, objectives)}
    whole = [record for record in records if record.completed]
    times = {
        "ttft": [record.ttft for record in whole],
        "tpot": [tpot for record in whole if (tpot := record.tpot) is not None],
    }
    for name, values in times.items():
        figures |= in_milliseconds(name, spread(values, PLOTTED))
    return figures


def show_rate(server: str, figures: Mapping[str, Any]) -> str:
    """One line."""
    failed = f", {figures['failed']} failed" if figures["failed"] else ""
    return (
        f"{server}: {figures['request_rate']:g} requests/s: {figures['request_throughput']:.2f} answered/s, "
        f"{figures['output_throughput']:.1f} tokens/s, TTFT p95 {figures['p95_ttft_ms']:.1f} ms, "
        f"TPOT p95 {figures['p95_tpot_ms']:.2f} ms{failed}"
    )


def draw_rates(file: str, servers: Mapping[str, Sequence[Mapping[str, Any]]], title: str) -> None:
    """servers: rate_figures() in ascending order of the rate, by the server's name. Raises ConfigError."""
    import matplotlib as mpl
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.ticker import LogLocator

    # Text stays text, and equal figures make equal files.
    with mpl.rc_context(
        {"svg.fonttype": "none", "svg.hashsalt": "tessera", "font.size": 9.0, "axes.grid": True, "grid.alpha": 0.3}
    ):
        figure = Figure(figsize=(10.0, 7.0), layout="constrained")
        figure.suptitle(title)
        ttft, tpot, tokens, answered = figure.subplots(2, 2, sharex=True).flat
        for points, color in zip(servers.values(), _COLORS, strict=False):
            for axes, time in ((ttft, "ttft"), (tpot, "tpot")):
                for percent, line in _LINES.items():
                    _line(axes, points, f"p{percent}_{time}_ms", color, line)
            _line(tokens, points, "output_throughput", color)
            _line(answered, points, "request_throughput", color)
        rates = sorted({point["request_rate"] for points in servers.values() for point in points})
        answered.plot(rates, rates, color=_SENT, linewidth=0.8)
        for axes, heading in ((ttft, "Time to the first token"), (tpot, "Time per token after the first")):
            _finish(axes, heading, "ms")
            axes.set_yscale("log")
            axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
            axes.yaxis.set_major_formatter("{x:g}")
            axes.yaxis.set_minor_formatter("")
        for axes, heading, unit in (
            (tokens, "Tokens generated", "tokens/s"),
            (answered, "Requests answered", "requests/s"),
        ):
            _finish(axes, heading, unit)
            axes.set_ylim(bottom=0)
            axes.set_xlabel("requests sent per second")
        names = [Line2D([], [], color=color, label=name) for name, color in zip(servers, _COLORS, strict=False)]
        lines = [Line2D([], [], color="black", linestyle=line, label=f"p{percent}") for percent, line in _LINES.items()]
        figure.legend(
            handles=[*names, *lines, Line2D([], [], color=_SENT, label="sent")], loc="outside lower center", ncols=6
        )
        try:
            figure.savefig(Path(file).expanduser(), format="svg", metadata={"Date": None})
        except OSError as error:
            raise ConfigError(f"--plot '{file}' cannot be written: {error.strerror}.") from error


def _line(axes: Axes, points: Sequence[Mapping[str, Any]], figure: str, color: str, style: str = "-") -> None:
    """What has no answers has no point."""
    whole = [point for point in points if point["completed"]]
    rates, values = [point["request_rate"] for point in whole], [point[figure] for point in whole]
    axes.plot(rates, values, style, color=color, marker="o", markersize=3.5, linewidth=1.4)


def _finish(axes: Axes, title: str, unit: str) -> None:
    axes.set_title(title, fontsize=10)
    axes.set_ylabel(unit)
    axes.set_xlim(left=0)
