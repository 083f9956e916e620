"""The parts of `make gpu`, and its two calls, each of which fits a lease of a machine: the first says what is broken,
the second how fast the rest is."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.gpu import checks as all_at_once
from tools.gpu.chat import FailedError, served
from tools.gpu.ledger import Ledger
from tools.gpu.plugin import plugin
from tools.gpu.running import Limits, Notes
from tools.gpu.shares import Shares, figures
from tools.gpu.surroundings import ROOT, Surroundings

CLIENTS = 8
ALONE = ("device/memory", "device/peak", "attention/triton/far-apart", "overlap/")
"""Cases that measure or fill the device's memory, or measure how host and device overlap: nothing may run beside
them."""
GOLD = ("native/", "composites/", "graphs/", "served/", "perf/")
RACES = (
    "attention/triton/decode-plain", "attention/triton/mixed-plain-bfloat16", "attention/triton/long-bfloat16",
    "attention/triton/mixed-wide-heads-bfloat16", "encoder/triton-encoder/plain-bfloat16",
    "op/linear/", "op/sample/",
)  # fmt: skip
FEW = ("device/", "op/rms_norm/0", "attention/triton/decode-plain")  # of a rehearsal
CHECKED: Mapping[str, Sequence[str]] = {
    "attention": (
        "attention/triton/decode-plain",
        "attention/triton/mixed-plain",
        "attention/triton/long-bfloat16",
        "encoder/triton-encoder/plain-",
    ),
    "products": ("op/linear/",),
    "sampling": ("op/sample/", "op/logprobs/"),
    "device": ("graphs/", "reads/step", "device/to_"),
}
"""Cases that say whether a platform can serve at all, by the check that runs them."""
CHECK_SECONDS = 40
SLOWER = 4
"""How many times as long a rehearsal may take, since the host interprets kernels."""


def machine(here: Surroundings, notes: Notes) -> None:
    """What the machine has that kernels, packages and files need. What is missing is a figure, not a failure."""
    for name, command in {
        "card": "nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader",
        "driver": "ldconfig -p | grep -m1 libcuda.so.1",
        "processor": "lscpu | grep -m1 'Model name'",
        "processors": "nproc",
        "compiler": "(gcc --version || clang --version) | head -1",
        "headers": f"ls $({sys.executable} -c 'import sysconfig; print(sysconfig.get_path(\"include\"))')/Python.h",
        "disk": "dd if=/dev/zero of=disk bs=1M count=512 conv=fsync 2>&1 | tail -1; rm -f disk",
    }.items():
        shell = ["sh", "-c", command]
        done = subprocess.run(shell, cwd=here.work, capture_output=True, text=True, timeout=20, check=False)
        notes.add(**{name: " ".join(done.stdout.split())[:80] or "nothing"})


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


def checks(here: Surroundings, notes: Notes) -> None:
    """Whether the kernels on which everything else depends are right, hang or fault: copied keys, plain and with
    specialized warps, attention, products, sampling, and captured launches."""
    copies = [sys.executable, "-m", "tools.gpu.copies", "--platform", here.platform]
    ledger = here.out / "checks.jsonl"
    ledger.unlink(missing_ok=True)
    cases = [sys.executable, "-m", "tools.gpu.cases", "--platform", here.platform, "--ledger", str(ledger)]
    cases += ["--levels", "bronze", "silver", "gold", "--only"]
    commands = {f"copies {kind}": [*copies, kind] for kind in ("plain", "specialized")}
    commands |= {name: [*cases, *only] for name, only in CHECKED.items()}
    if here.rehearsal:
        commands = {"copies plain": commands["copies plain"], "sampling": [*cases, "op/take_logits/"]}
    seconds = SLOWER * CHECK_SECONDS if here.rehearsal else CHECK_SECONDS
    try:
        all_at_once.run(commands, seconds, here.work, here.environment, notes)
    finally:
        lines = Ledger(ledger).read()
        found = figures(lines, len(lines))
        notes.add(**{name: found[name] for name in ("passed", "failed_cases", "running", "failures")})
    if found["failed_cases"]:
        raise FailedError(f"{found['failed_cases']} cases failed, {next(iter(found['failures']))} first;")


def profile(here: Surroundings, notes: Notes) -> None:
    """Where the time of captured steps and of a prompt goes, by kernel."""
    file = here.out / "profile.txt"
    flags = ["--platform", here.platform, "--text", str(file), *(["--tiny"] if here.rehearsal else [])]
    here.python("-m", "benchmarks.gpu.profiled", *flags)
    steps = [line for line in file.read_text(encoding="utf-8").splitlines() if "us a step" in line]
    notes.add(**{line.partition(":")[0]: line.partition(": ")[2] for line in steps})


def tune(here: Surroundings, notes: Notes) -> None:
    """Tiles of quantized products, with what time is left."""
    table = here.out / "tuned.json"
    flags = ["--platform", here.platform, "--json", str(table), "--seconds", str(round(here.seconds - 10))]
    flags += ["--quantization", *(("int8",) if here.rehearsal else ("fp8", "int4"))]
    flags += ["--tokens", *(("1",) if here.rehearsal else ("1", "16", "64")), *(["--tiny"] if here.rehearsal else [])]
    said = here.python("-m", "benchmarks.gpu.tune", *flags).splitlines()
    notes.add(tuned=sum("times as fast with" in line for line in said), last=said[-1] if said else "")


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
    "machine": (machine, Limits(longest=20, shortest=0)),
    "install": (install, Limits(longest=120, shortest=0)),
    "platforms": (platforms, Limits(longest=60, shortest=10)),
    "checks": (checks, Limits(longest=60, shortest=20)),
    "serve": (serve, Limits(longest=150, shortest=30)),
    "profile": (profile, Limits(longest=90, shortest=30)),
    "bench": (bench, Limits(longest=420, shortest=60)),
    "kernels": (kernels, Limits(longest=240, shortest=30)),
    "tune": (tune, Limits(longest=300, shortest=30)),
    "gold": (gold, Limits(longest=240, shortest=60)),
    "races": (races, Limits(longest=120, shortest=40)),
    "plugin": (plugin, Limits(longest=200, shortest=60)),
}


@dataclass(frozen=True)
class Call:
    """Parts that are run together. seconds: of all of them."""

    seconds: float
    limits: Mapping[str, Limits]

    def rehearsed(self) -> Call:
        """With the time that a rehearsal may take."""
        limits = {name: Limits(SLOWER * limit.longest, limit.shortest) for name, limit in self.limits.items()}
        return Call(SLOWER * self.seconds, limits)


CALLS: Mapping[str, Call] = {
    "broken": Call(
        170,
        {
            "machine": Limits(longest=10, shortest=0),
            "install": Limits(longest=60, shortest=0),
            "platforms": Limits(longest=20, shortest=5),
            "checks": Limits(longest=45, shortest=15),
            "serve": Limits(longest=60, shortest=20),
            "profile": Limits(longest=60, shortest=15),
        },
    ),
    "fast": Call(
        480,
        {
            "install": Limits(longest=60, shortest=0),
            "bench": Limits(longest=330, shortest=60),
            "kernels": Limits(longest=70, shortest=30),
            "tune": Limits(longest=300, shortest=25),
        },
    ),
}
"""By name. Before the second, the machine can be given back, and what the first found be mended."""
