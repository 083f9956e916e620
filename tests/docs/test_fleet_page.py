"""docs/fleet.md: its commands are taken, its table of devices is that of the simulation, and its traces can be read."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from benchmarks.simulation.__main__ import make_parser
from benchmarks.simulation.devices import PRODUCT_SHARE, PUBLISHED, READ_SHARE, STEP_SECONDS
from benchmarks.simulation.routes import ROUTES
from benchmarks.simulation.traces import read_trace

PAGE = (Path(__file__).parents[2] / "docs/fleet.md").read_text(encoding="utf-8")
COMMANDS = [
    line
    for block in re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL)
    for line in block.replace("\\\n", " ").strip().splitlines()
]


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_is_taken(command: str) -> None:
    python, dash, module, *arguments = shlex.split(command)
    assert (python, dash, module) == ("python", "-m", "benchmarks.simulation")
    make_parser().parse_args(arguments)


def test_each_option_is_one_of_a_command() -> None:
    taken = set(re.findall(r"--[\w-]+", make_parser().format_help()))
    for action in ("run", "measure", "validate"):
        (parsers,) = (each.choices for each in make_parser()._actions if each.choices)
        taken |= {option for each in parsers[action]._actions for option in each.option_strings}
    assert set(re.findall(r"--[a-z][\w-]+", PAGE)) <= taken


def test_the_table_of_devices_is_that_of_the_simulation() -> None:
    rows = re.findall(r"^\| `([\w-]+)` \| (\d+ GB .*) \|$", PAGE, re.MULTILINE)
    assert dict(rows) == {
        name: f"{one.memory_bytes / 1e9:.0f} GB | {one.bytes_per_second / 1e12:.2f} TB/s | "
        f"{one.flops_per_second / 1e12:.0f} TFLOP/s | {one.source}"
        for name, one in PUBLISHED.items()
    }


def test_the_assumptions_are_those_of_the_simulation() -> None:
    said = f"{READ_SHARE} of the bandwidth and {PRODUCT_SHARE} of the arithmetic, and {1e3 * STEP_SECONDS} ms"
    assert said in PAGE


def test_the_line_of_a_trace_is_read(tmp_path: Path) -> None:
    (line,) = re.findall(r"`(\{\"time\".*?\})`", PAGE)
    (tmp_path / "trace.jsonl").write_text(line)
    (request,) = read_trace(tmp_path / "trace.jsonl")
    assert (request.at, request.prompt_length, request.answer.length) == (1.5, 900, 120)


def test_each_route_is_named() -> None:
    assert all(route in PAGE for route in ROUTES)
