"""Generates the table of what each platform package has, in docs/evidence/platforms.md: `python -m
tools.platform_table`. What the tree says is read anew; what a platform answers on its device
(tools/platform_answers.py) stays as it is on the page, unless `--ask NAME...` asks it, in the environment of the stage
that tests it."""

from __future__ import annotations

import argparse
import json
import os
import re
import runpy
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tessera.ops import REFERENCE
from tessera_triton import TARGETS
from tools.checks.reassigned import reassigned_by
from tools.npu_shapes import shapes as npu_shapes
from tools.platform_answers import PLACES
from tools.run_stages import read_stages

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/evidence/platforms.md"
HEAD = (
    "| Platform | Conformance | Ops: native / in part / by parts | By reference | Shapes of launches "
    "| Without the device | Verified | Lines of Python | Of the plugin for vLLM | Attributes reassigned |\n"
)
STATES = "| Platform | Distribution | State | Run on hardware | Compiled | Emulated |\n"
"""The table that says by what each platform was verified."""
TPU_STEPS = "| Topology | Chips | Step |"
"""How the table of compiled steps begins, which tools/tpu/targets.py renews."""
NOT_SO = ("no", "never", "nothing")
BACKENDS = {"cuda": "cuda", "rocm": "hip"}
"""Platforms whose kernels are compiled for the devices of platforms/triton/targets.json, by Triton's backend."""
PACKAGES = {"torch-tpu": "xla"}
"""Where platforms are that do not have the name of their package."""
FOLDERS = ("", "core", "tests/fakechip", "tests/torch_fakechip")


@dataclass(frozen=True)
class Plugin:
    """A vendor's own package for vLLM. lines: of its .py files, comments included, without tests, as counted in 2026-11
    at a commit of its repository."""

    package: str
    commit: str
    lines: int

    def __str__(self) -> str:
        return f"{self.lines:,} (`{self.package}`, {self.commit})"


PLUGINS: Mapping[str, Plugin] = {
    "gaudi": Plugin("vllm_gaudi", "091bbadd", 39_694),
    "ascend": Plugin("vllm_ascend", "182b75ea", 143_560),
}


def rows_of(text: str, head: str) -> list[list[str]]:
    """The cells of a table's rows. head: how its first line begins."""
    lines = text[text.index(head) :].partition("\n\n")[0].splitlines()
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[2:]]


def on_page(text: str) -> Mapping[str, tuple[str, str, str]]:
    """What the page says that platforms answer."""
    return {cells[0].strip("`"): (cells[1], cells[2], cells[4]) for cells in rows_of(text, HEAD)}


def page(text: str, answers: Mapping[str, Sequence[str]]) -> str:
    """The page with the table renewed. answers: of platforms that were asked; of the others, the page's own."""
    before, after = text[: text.index(HEAD)], text[text.index(HEAD) :].partition("\n\n")[2]
    known = {**on_page(text), **answers}
    missing = [name for name in names(text) if name not in known]
    if missing:
        raise SystemExit(f"docs/evidence/platforms.md has no answers of {missing[0]}: add --ask {missing[0]}")
    made = [HEAD.rstrip("\n"), "|---" * HEAD.count(" |") + "|", *(row(name, known[name], text) for name in names(text))]
    return f"{before}{chr(10).join(made)}\n\n{after}"


def names(text: str) -> list[str]:
    """The platform packages, in the page's order."""
    named = (cells[0].strip("`") for cells in rows_of(text, STATES))
    return [name for name in named if name in PLACES]


def row(name: str, answers: Sequence[str], text: str) -> str:
    level, native, shapes = answers
    plugin = PLUGINS.get(name)
    cells = (
        f"`{name}`", level, native, by_reference(native), shapes, compiled(name, text), verified(name, text),
        size(name), "-" if plugin is None else str(plugin), str(sum(map(changes, packages(name)))),
    )  # fmt: skip
    return f"| {' | '.join(cells)} |"


def by_reference(native: str) -> str:
    """Of core's ops and attention, those that the others do not leave. native: the cell of those."""
    counts = [int(number) for number in re.findall(r"\d+", native)]
    return str(len(REFERENCE.names()) + 1 - sum(counts)) if counts else "-"


def compiled(name: str, text: str) -> str:
    """What compilers and checkers make of it without the device, from what the tree has of that."""
    if name == "cpu":
        variants = runpy.run_path(str(ROOT / "platforms/cpu/csrc/build.py"))["VARIANTS"]
        return f"{sum(map(len, variants.values()))} sets of kernels, {len(variants)} architectures"
    if name in BACKENDS:
        table = json.loads((ROOT / "platforms/triton/targets.json").read_text(encoding="utf-8"))
        found = [len(made) for target, made in table.items() if TARGETS[target].backend == BACKENDS[name]]
        return f"{sum(found):,} kernels, {len(found)} devices"
    if name == "tpu":
        steps = rows_of(text, TPU_STEPS)
        return f"{len(steps)} steps, {len({step[0] for step in steps})} topologies"
    return f"shapes of {len(npu_shapes.OPS)} ops and attention" if name == "ascend" else "-"


def verified(name: str, text: str) -> str:
    """The ways that the page's first table affirms."""
    cells = {cells[0].strip("`"): cells[3:] for cells in rows_of(text, STATES)}
    ways = [way.strip().lower() for way in STATES.strip("|\n").split("|")[3:]]
    said = [_whole(cell, place, cells) for place, cell in enumerate(cells[name])]
    found = [way for way, cell in zip(ways, said, strict=True) if not cell.startswith(NOT_SO)]
    return ", ".join([*found, *(["interpreted"] if any("interpreter" in cell for cell in said) else [])])


def _whole(cell: str, place: int, cells: Mapping[str, Sequence[str]]) -> str:
    """With what it says of another platform's cell: "as for `cuda`"."""
    other = re.match(r"as for `(\w+)`", cell)
    return cell if other is None else f"{_whole(cells[other[1]][place], place, cells)}; {cell}"


def size(name: str) -> str:
    own, *shared = packages(name)
    return " + ".join([rounded(count(own)), *(f"{rounded(count(one))} of `{one.parent.name}`" for one in shared)])


def rounded(lines: int) -> str:
    """To two digits, so that the page does not change with every edit."""
    return f"{float(f'{lines:.2g}'):,.0f}"


def count(package: Path) -> int:
    """Of all .py files, comments included."""
    return sum(file.read_text(encoding="utf-8").count("\n") for file in package.rglob("*.py"))


def packages(name: str) -> Iterator[Path]:
    """The platform's own, and libraries among the platforms that it requires."""
    own = PACKAGES.get(name, name)
    folder = ROOT / "platforms" / own
    yield folder / f"tessera_{own}"
    project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    required = {match[1] for one in project["dependencies"] if (match := re.match(r"tessera-(\w+)\b", one))}
    yield from (ROOT / f"platforms/{one}/tessera_{one}" for one in sorted(required - {"llm"}))


def changes(package: Path) -> int:
    return len(reassigned_by(package, ROOT))


def ask(name: str) -> list[str]:
    """What the platform answers. Raises CalledProcessError."""
    (stage,) = (one for one in read_stages(ROOT / "tools/stages.toml", "test-all") if one.name == PLACES[name].stage)
    setting = shlex.split(stage.command.partition("pytest ")[0])
    program = setting if "tools.tpu" in setting else [*setting, "python", "-m"]
    program = [sys.executable if word == "python" else word for word in program]
    path = os.pathsep.join(map(str, (*(ROOT / folder for folder in FOLDERS), *sorted(ROOT.glob("platforms/*")))))
    done = subprocess.run(
        [*program, "tools.platform_answers", name], cwd=ROOT, env={**os.environ, "PYTHONPATH": path}, check=True,
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    answered: list[str] = json.loads(done.stdout.splitlines()[-1])
    return answered


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.platform_table", description=__doc__)
    parser.add_argument("--ask", nargs="+", metavar="NAME", choices=PLACES, default=(), help="platforms to ask")
    options = parser.parse_args(arguments)
    known = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(page(known, {name: ask(name) for name in options.ask}), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
