"""A package that `tessera plugin new` wrote for torch's own device, with reference ops only: generated, checked, at
bronze, serving, measured."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tools.gpu.chat import one_chat
from tools.gpu.running import Notes
from tools.gpu.surroundings import Surroundings

ROWS, PROMPT, NEW = 8, 128, 64  # of the measured batch


def plugin(here: Surroundings, notes: Notes) -> None:
    """Raises FailedError at the first step that fails."""
    name = "torchhost" if here.device == "cpu" else f"torch{here.device}"
    folder = here.work / f"tessera-{name}"
    here.tessera("plugin", "new", name, "--device", here.device, "--into", str(here.work), "--yes")
    here.add(str(folder))
    notes.add(lines_by_hand=int(here.tessera("plugin", "lines", str(folder)).split()[0]))
    here.tessera("plugin", "check", str(folder))
    _bronze(here, name, notes)
    command = [sys.executable, "-m", "tessera.cli", "serve", "--platform", name]
    chat = one_chat(command, here.work / "plugin-serve.log", here.work, here.environment)
    notes.add(ready_s=chat["ready_s"], answer_s=chat["answer_s"])
    _bench(here, name, notes)


def _bronze(here: Surroundings, name: str, notes: Notes) -> None:
    kit = here.work / "bronze.json"
    some = ["--case", "op/linear"] if here.rehearsal else []
    here.tessera("conformance", "--platform", name, "--level", "bronze", "--json", str(kit), *some)
    found = json.loads(kit.read_text(encoding="utf-8"))
    notes.add(cases=len(found["cases"]), reached=found["reached"] or "not asked")


def _bench(here: Surroundings, name: str, notes: Notes) -> None:
    rows, prompt, new = (2, 16, 4) if here.rehearsal else (ROWS, PROMPT, NEW)
    figures = here.work / "plugin-bench.json"
    flags = {"batch-size": rows, "input-len": prompt, "output-len": new, "num-iters-warmup": 1, "num-iters": 3}
    asked = [word for flag, value in flags.items() for word in (f"--{flag}", str(value))]
    here.tessera("bench", "latency", "--platform", name, *asked, "--json", str(figures))
    seconds = json.loads(Path(figures).read_text(encoding="utf-8"))["avg_latency"]
    notes.add(tokens_per_s=rows * new / seconds)
