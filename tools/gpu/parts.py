"""The parts of `make gpu`, the most valuable first."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from tools.gpu.chat import FailedError, served
from tools.gpu.plugin import plugin
from tools.gpu.running import Limits, Notes
from tools.gpu.shares import Shares
from tools.gpu.surroundings import ROOT, Surroundings

CLIENTS = 8
ALONE = ("device/memory", "device/peak", "attention/triton/far-apart", "overlap/")
"""Cases that measure or fill the device's memory, or measure how host and device overlap: nothing may run beside
them."""
GOLD = ("native/", "composites/", "graphs/", "served/", "perf/")
RACES = (
    "attention/triton/decode-plain", "attention/triton/mixed-plain-bfloat16", "attention/triton/long-bfloat16",
    "attention/triton/mixed-wide-heads-bfloat16",
    "op/linear/", "op/sample/",
)  # fmt: skip
FEW = ("device/", "op/rms_norm/0", "attention/triton/decode-plain")  # of a rehearsal


def install(here: Surroundings, notes: Notes) -> None:
    """Puts core and the platforms cpu and cuda, with their library, in front of the machine's packages."""
    here.add("hatchling")
    packages = (here.copied(f"platforms/{name}") for name in ("cpu", "triton", "cuda"))
    here.add(f"{ROOT}[plugin]", *packages)
    program = (
        "import sys, torch, triton, transformers, tessera, tessera_cuda, tessera_triton, json; print(json.dumps({"
        "'python': sys.version.split()[0], 'torch': torch.__version__, 'triton': triton.__version__, "
        "'transformers': transformers.__version__, 'from': tessera.__file__}))"
    )
    found = json.loads(here.python("-c", program).splitlines()[-1])
    if not found.pop("from").startswith(str(here.site)):
        raise FailedError("the packages that were just installed are not the ones that are imported")
    notes.add(**found)


def platforms(here: Surroundings, notes: Notes) -> None:
    """The platform cuda is found and, on a card, chosen with all its kernels."""
    rows = json.loads(here.tessera("platforms", "--json"))
    row = next((row for row in rows if row["name"] == "cuda"), None)
    if row is None:
        raise FailedError(f"there is no platform cuda among {[row['name'] for row in rows]}")
    notes.add(score=row["score"], reason=row["error"] or row["reason"], devices=row["devices"])
    best = max(rows, key=lambda row: row["score"] or 0)
    if not here.rehearsal and (best is not row or (row["score"] or 0) < 100):
        raise FailedError(f"{best['name']} is chosen, and cuda has {row['score']}:")


def kernels(here: Surroundings, notes: Notes) -> None:
    """Every op and attention at bronze and silver, compiled for the card, beside the reference."""
    only = FEW if here.rehearsal else ()
    number = 1 if here.rehearsal else max(1, min(8, (os.cpu_count() or 2) // 2))
    _cases(here, "kernels", ["--levels", "bronze", "silver", "--only", *only, "--but", *ALONE], number).run(notes)


def gold(here: Surroundings, notes: Notes) -> None:
    """What `tessera conformance --level gold --perf` has beyond silver, one case at a time, since most of it is
    measured; and the cases that run alone."""
    some = ("composites/add_norm", "native/linear-bfloat16", "device/peak") if here.rehearsal else (*GOLD, *ALONE)
    _cases(here, "gold", ["--levels", "bronze", "silver", "gold", "--only", *some], 1).run(notes)


def races(here: Surroundings, notes: Notes) -> None:
    """A few cases with the accesses to shared memory checked by Triton's sanitizer, which stops a program that
    races."""
    checked = {"TRITON_INSTRUMENTATION_MODE": "consan", "CUDA_LAUNCH_BLOCKING": "1"}
    checked["TRITON_CACHE_DIR"] = str(here.work / "instrumented")
    some, witness = (("op/linear/0", "op/sample/0") if here.rehearsal else RACES), here.work / "sanitizer"
    _cases(here, "races", ["--only", *some, "--scratch", str(witness)], 1 if here.rehearsal else 4, checked).run(notes)
    if not witness.exists() and not here.rehearsal:
        raise FailedError("the sanitizer asked for no memory, so it checked nothing;")


def _cases(
    here: Surroundings, name: str, flags: list[str], number: int, variables: Mapping[str, str] | None = None
) -> Shares:
    flags = ["--platform", here.platform, *flags]
    return Shares(flags, here.out / f"{name}.jsonl", number, here.work, {**here.environment, **(variables or {})})


def serve(here: Surroundings, notes: Notes) -> None:
    """The demo, with captured launches and two steps in flight: one chat, a streamed one, several at once."""
    command = [sys.executable, "-m", "tessera.cli", "serve", "--platform", here.platform, "--steps-in-flight", "2"]
    command += ["--log-level", "info", "--max-num-seqs", str(CLIENTS)]
    clients, tokens = CLIENTS, 32
    if here.rehearsal:
        command += ["--kv-cache-memory-bytes", str(16 << 20), "--max-model-len", "128"]
        clients, tokens = 2, 10
    log = here.out / "serve.log"
    with served(command, log, here.work, here.environment, tokens) as server:
        notes.add(ready_s=server.ready_s, answer=server.chat())
        _, first = server.streamed()
        notes.add(first_text_s=first)
        notes.add(clients=clients, all_answered_s=server.at_once(clients))
    text = log.read_text(encoding="utf-8", errors="replace")
    missing = re.findall(r"[^\n]*not captured[^\n]*", text)
    if missing:
        raise FailedError(f"launches are not captured: {missing[0][:200]};")


def bench(here: Surroundings, notes: Notes) -> None:
    """The benchmarks of benchmarks/gpu, each in a process of its own."""
    figures = here.out / "bench.json"
    figures.unlink(missing_ok=True)
    command = [sys.executable, "-m", "benchmarks.gpu", "--platform", here.platform, "--json", str(figures)]
    command += ["--seconds", str(round(here.seconds - 15)), *(["--tiny"] if here.rehearsal else [])]
    command += ["--only", *here.only] if here.only else []
    process = subprocess.Popen(command, cwd=here.work, env=here.environment)
    while process.poll() is None:
        time.sleep(1)
        _measured(figures, notes)
    wrong = _measured(figures, notes)
    if process.returncode != 0 or wrong:
        raise FailedError("; ".join(wrong) or f"it ended with {process.returncode};")


def _measured(path: Path, notes: Notes) -> list[str]:
    """Notes the figures so far. Returns what went wrong."""
    if not path.exists():
        return ["it wrote no figures; gpu.log has the rest"]
    found = json.loads(path.read_text(encoding="utf-8"))["measures"]
    notes.add(**{figure["name"]: figure["value"] for one in found for figure in one["figures"]})
    return [f"{one['name']}: {one['reason'][:100]}" for one in found if one["reason"]]


PARTS: Mapping[str, tuple[Callable[[Surroundings, Notes], None], Limits]] = {
    "install": (install, Limits(longest=120, shortest=0)),
    "platforms": (platforms, Limits(longest=60, shortest=10)),
    "kernels": (kernels, Limits(longest=240, shortest=30)),
    "serve": (serve, Limits(longest=150, shortest=30)),
    "bench": (bench, Limits(longest=420, shortest=60)),
    "gold": (gold, Limits(longest=240, shortest=60)),
    "races": (races, Limits(longest=120, shortest=40)),
    "plugin": (plugin, Limits(longest=200, shortest=60)),
}
