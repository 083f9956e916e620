"""`tessera bench serve --plot`: two servers at several rates, in one picture."""

from __future__ import annotations

import json
import re
from functools import partial
from xml.etree import ElementTree as ET

import pytest

from tessera.cli.bench import plot
from tessera.cli.client.remote import connect
from tessera.cli.program import run
from tests.unit.cli.fake_server import FakeServer, Timing

RATES = ("--rates", "400,100", "--rates", "200", "--num-prompts", "5", "--input-len", "8", "--output-len", "4")


@pytest.fixture
def bench(monkeypatch):
    """`tessera bench serve` at fake servers, by their URLs: its exit code."""

    def serve(servers, *flags):
        def connected(url, **options):
            return connect(url, transport=servers[url], **options)

        monkeypatch.setattr("tessera.cli.bench.commands.connect", connected)
        return run(["bench", "serve", *flags])

    return serve


def texts(file):
    return {element.text for element in ET.parse(file).iter("{http://www.w3.org/2000/svg}text")}  # noqa: S314 - our own


def test_two_servers_are_measured_in_turns_and_drawn_side_by_side(bench, tmp_path, capsys):
    servers = {"http://one:1": FakeServer(), "http://two:2": FakeServer([Timing(first=0.01)])}
    picture, result = tmp_path / "rates.svg", tmp_path / "result.json"
    flags = (*RATES, "--url", "http://one:1", "--beside", "http://two:2", "--plot", str(picture), "--json", str(result))
    assert bench(servers, *flags) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [
        re.match(r"m at (\S+): (\d+) requests/s: .* TTFT p95 .* ms, TPOT p95 .* ms$", line).groups() for line in lines
    ] == [(url, rate) for rate in ("100", "200", "400") for url in servers]
    measured = json.loads(result.read_text())["servers"]
    assert {name: [point["request_rate"] for point in points] for name, points in measured.items()} == {
        f"m at {url}": [100, 200, 400] for url in servers
    }
    for points in measured.values():
        for point in points:
            assert point["completed"] == 5
            assert point["p50_ttft_ms"] == pytest.approx(point["median_ttft_ms"])
            assert point["p50_ttft_ms"] <= point["p95_ttft_ms"] <= point["p99_ttft_ms"]
    shown = texts(picture)
    assert {
        "Time to the first token",
        "Time per token after the first",
        "Tokens generated",
        "Requests answered",
    } <= shown
    assert {"p50", "p95", "p99", "sent"} <= shown
    assert {f"m at {url}" for url in servers} <= shown
    # No prompt comes twice, so that no cache has it.
    prompts = [tuple(body["prompt"]) for body in servers["http://one:1"].asked]
    assert len(set(prompts)) == len(prompts) == 3 * (5 + 1)


def test_equal_figures_make_equal_files_and_failures_have_no_points(tmp_path):
    figures = {"completed": 1, "output_throughput": 9.0, "request_throughput": 1.0}
    figures |= {f"p{percent}_{time}_ms": 5.0 for percent in plot.PLOTTED for time in ("ttft", "tpot")}
    points = [{**figures, "request_rate": 1.0}, {**figures, "request_rate": 2.0, "completed": 0}]
    files = [tmp_path / "a.svg", tmp_path / "b.svg"]
    for file in files:
        plot.draw_rates(str(file), {"m": points}, "One server")
    assert files[0].read_bytes() == files[1].read_bytes()
    assert b"http://one" not in files[0].read_bytes()


def test_a_server_that_fails_is_drawn_and_said(bench, tmp_path, capsys):
    server = FakeServer([Timing(), Timing(status=503, error="full")])
    flags = ("--url", "http://one:1", "--plot", str(tmp_path / "x.svg"), *RATES[:2], "--num-warmups", "0", *RATES[4:])
    assert bench({"http://one:1": server}, *flags) == 1
    assert "5 failed" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "what"),
    [
        (["--rates", "1"], "--rates needs --plot FILE.svg."),
        (["--beside", "http://x"], "--beside needs --plot FILE.svg."),
        (["--plot", "x.png"], "--plot 'x.png' must end in .svg."),
        (["--plot", "no/such/x.svg"], "the folder does not exist"),
        (["--plot", "x.svg"], "--plot needs 1 to 100 --rates, such as --rates 1,2,4,8."),
        (["--plot", "x.svg", "--rates", "1,a"], "--rates 'a' must be requests per second, above 0."),
        (["--plot", "x.svg", "--rates", "inf"], "--rates 'inf' must be requests per second, above 0."),
        (["--plot", "x.svg", "--rates", "1", "--request-rate", "3"], "--request-rate has no meaning with --plot"),
    ],
)
def test_what_does_not_hold_is_one_line(bench, capsys, flags, what):
    assert bench({}, *flags) == 2
    assert what in capsys.readouterr().err


def test_without_matplotlib_it_says_what_to_install(bench, monkeypatch, capsys):
    monkeypatch.setattr(plot, "find_spec", partial(lambda _name: None))
    assert bench({}, "--plot", "x.svg", "--rates", "1") == 2
    assert "--plot needs Matplotlib: pip install 'tessera-llm[plot]'." in capsys.readouterr().err
