"""Tests a package that `tessera plugin new` wrote for torch's own device, using only reference ops, on the real device:
`make gpu`. Needs no network; .whl (make gpu-wheels) contains what the machine's Python lacks.

Runs with the machine's python3, which has torch and transformers, before any part of Tessera is installed.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
QUESTION, ANSWER = "What is the capital of France?", "Paris"
ROWS, PROMPT, NEW = 8, 128, 64  # of the measured batch
READY_SECONDS, STEP_SECONDS = 180, 400
Figures = dict[str, Any]


@dataclass
class Step:
    """figures: the results. closing: the end of the output, or why it failed."""

    name: str
    outcome: str = "passed"
    seconds: float = 0.0
    closing: str = ""
    figures: Figures = field(default_factory=dict)


class FailedError(Exception):
    """A step did not have the expected result."""


class Run:
    """device: torch's name for it. out: folder for results and logs. work: a folder for this run only."""

    def __init__(self, device: str, wheels: Path, out: Path, work: Path) -> None:
        self.device, self.wheels, self.out, self.work = device, wheels, out, work
        self.name = "torchhost" if device == "cpu" else device
        self.folder = work / f"tessera-{self.name}"
        self.python = work / "venv/bin/python"

    def steps(self) -> dict[str, Callable[[], Figures]]:
        return {
            "install": self.install,
            "generate": self.generate,
            "check": lambda: {"said": self.tessera("check", "plugin", "check", str(self.folder)).splitlines()[-1]},
            "platforms": self.platforms,
            "conformance": self.conformance,
            "serve": self.serve,
            "bench": self.bench,
        }

    def install(self) -> Figures:
        """Installs core and the host's platform from this tree, in an environment on top of the machine's own."""
        venv = [sys.executable, "-m", "venv", "--system-site-packages", "--without-pip", str(self.python.parents[1])]
        self.call("install", venv)
        # If this Python is in a virtual environment itself, venv would use the packages of its base.
        asked = [str(self.python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
        site = subprocess.run(asked, check=True, capture_output=True, text=True).stdout.strip()
        Path(site, "machine.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
        self.pip("hatchling")
        self.pip("--no-build-isolation", f"{ROOT}[plugin]", str(ROOT / "platforms/cpu"))
        found = "import json, sys, torch, transformers; print(json.dumps([sys.version.split()[0], torch.__version__, "
        versions = self.call("install", [str(self.python), "-c", f"{found}transformers.__version__]))"])
        return dict(zip(("python", "torch", "transformers"), json.loads(versions.splitlines()[-1]), strict=True))

    def generate(self) -> Figures:
        self.tessera("generate", "plugin", "new", self.name, "--device", self.device, "--into", str(self.work), "--yes")
        self.pip("--no-deps", "--no-build-isolation", str(self.folder))
        return {"lines by hand": int(self.tessera("generate", "plugin", "lines", str(self.folder)).split()[0])}

    def platforms(self) -> Figures:
        rows = json.loads(self.tessera("platforms", "platforms", "--json"))
        row: Figures = next(row for row in rows if row["name"] == self.name)
        if row["error"] is not None or not row["score"]:
            raise FailedError(str(row["error"] or row["reason"]))
        return {name: row[name] for name in ("score", "reason", "devices")}

    def conformance(self) -> Figures:
        kit = self.out / "conformance.json"
        asked = ["--platform", self.name, "--level", "bronze", "--json", str(kit)]
        closing = self.tessera("conformance", "conformance", *asked).strip().splitlines()[-1]
        return {"said": closing, "reached": json.loads(kit.read_text(encoding="utf-8"))["reached"]}

    def serve(self) -> Figures:
        command = [str(self.python), "-m", "tessera.cli", "serve", "--platform", self.name]
        return one_chat(command, self.out / "serve.log", self.work)

    def bench(self) -> Figures:
        figures = self.out / "bench.json"
        asked = [
            "--platform",
            self.name,
            "--input-len",
            str(PROMPT),
            "--output-len",
            str(NEW),
            "--batch-size",
            str(ROWS),
        ]
        asked += ["--num-iters-warmup", "1", "--num-iters", "3", "--json", str(figures)]
        self.tessera("bench", "bench", "latency", *asked)
        found = json.loads(figures.read_text(encoding="utf-8"))
        seconds = found["avg_latency"]
        return {"batch_s": seconds, "tokens_per_s": ROWS * NEW / seconds, "on the reference": found["fallback_ops"]}

    def tessera(self, step: str, *arguments: str) -> str:
        return self.call(step, [str(self.python), "-m", "tessera.cli", *arguments])

    def pip(self, *arguments: str) -> str:
        """Runs the machine's pip on the environment; downloads nothing."""
        command = [sys.executable, "-m", "pip", "--python", str(self.python), "--disable-pip-version-check", "install"]
        return self.call("install", [*command, "--no-index", "--find-links", str(self.wheels), "--quiet", *arguments])

    def call(self, step: str, command: list[str]) -> str:
        """A command's stdout; its output is logged. Raises FailedError with the last line."""
        environment = {**os.environ, "PYTHONPATH": ""}
        done = subprocess.run(
            command, cwd=self.work, env=environment, capture_output=True, text=True, timeout=STEP_SECONDS, check=False
        )
        with (self.out / f"{step}.log").open("a", encoding="utf-8") as log:
            log.write(f"$ {' '.join(command)}\n{done.stdout}{done.stderr}")
        if done.returncode != 0:
            said = (done.stderr.strip() or done.stdout.strip() or "no word").splitlines()
            failed = [line for line in done.stdout.splitlines() if line.startswith("failed")]
            raise FailedError((failed or said[-1:])[0][:300])
        return done.stdout


def run(steps: dict[str, Callable[[], Figures]]) -> list[Step]:
    """Runs all steps, even after a failure."""
    done = []
    for name, act in steps.items():
        step, begin = Step(name), time.perf_counter()
        try:
            step.figures = act()
            step.closing = ", ".join(f"{key} {_shown(value)}" for key, value in step.figures.items())[:100]
        except Exception as error:  # noqa: BLE001  # a failed step does not stop the others
            step.outcome, step.closing = "failed", " ".join(str(error).split())[:300] or type(error).__name__
        step.seconds = round(time.perf_counter() - begin, 2)
        print(f"{step.name:<12} {step.seconds:7.1f} s  {step.outcome:<7} {step.closing}", flush=True)
        done.append(step)
    return done


def one_chat(command: list[str], log: Path, folder: Path, environment: Mapping[str, str] | None = None) -> Figures:
    """Starts a server, asks the question, and ends the server. ready_s: seconds from process start. Raises FailedError
    if it does not become ready or gives another answer."""
    port = _free_port()
    begin = time.perf_counter()
    with log.open("wb") as file:
        server = subprocess.Popen(
            [*command, "--port", str(port)], stdout=file, stderr=subprocess.STDOUT, cwd=folder, env=environment
        )
        try:
            return _asked(f"http://127.0.0.1:{port}", server, begin, log)
        finally:
            server.send_signal(signal.SIGTERM)
            try:
                server.wait(30)
            except subprocess.TimeoutExpired:
                server.kill()


def _asked(url: str, server: subprocess.Popen[bytes], begin: float, log: Path) -> Figures:
    while not _is_ready(url):
        if server.poll() is not None or time.perf_counter() - begin > READY_SECONDS:
            last = log.read_text(errors="replace").strip().splitlines()[-1:]
            raise FailedError(f"the server is not ready: {' '.join(last)}")
        time.sleep(0.1)
    ready, asked = time.perf_counter() - begin, time.perf_counter()
    model = _json(f"{url}/v1/models")["data"][0]["id"]
    messages = [{"role": "user", "content": QUESTION}]
    told = _json(
        f"{url}/v1/chat/completions",
        {"model": model, "messages": messages, "max_tokens": 32, "temperature": 0},
    )
    answer = told["choices"][0]["message"]["content"]
    if ANSWER not in answer:
        raise FailedError(f"{QUESTION} {answer}")
    return {"ready_s": ready, "answer_s": time.perf_counter() - asked, "answer": answer, "model": model}


def _shown(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _is_ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/readyz", timeout=5) as answer:  # noqa: S310  # this script's own server
            return bool(answer.status == 200)
    except OSError:
        return False


def _json(url: str, body: Figures | None = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})  # noqa: S310  # as above
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:  # noqa: S310
            return json.loads(answer.read())
    except urllib.error.HTTPError as error:
        with error:
            raise FailedError(f"{url} answered {error.code}: {error.read().decode()[:200]}") from error


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def obstacle(device: str, wheels: Path) -> str | None:
    """Why nothing can run here, or None."""
    if device != "cpu":
        program = (
            f"import sys, torch; a = torch.accelerator.current_accelerator(); sys.exit(not a or a.type != {device!r})"
        )
        if subprocess.run([sys.executable, "-c", program], capture_output=True, check=False).returncode != 0:
            return f"torch finds no {device} here"
    return None if any(wheels.glob("*.whl")) else f"no wheels in {wheels.name}: make gpu-wheels downloads them"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda", help="torch's name of it; cpu tries the script itself")
    parser.add_argument("--wheels", type=Path, default=ROOT / ".whl")
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT") or ROOT / "build/gpu"))
    given = parser.parse_args()
    reason = obstacle(given.device, given.wheels)
    if reason is not None:
        print(f"gpu did not run: {reason}")
        return 1 if os.environ.get("TESSERA_REQUIRE_ALL") == "1" else 0
    out = given.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix="tessera-gpu-"))
    try:
        steps = run(Run(given.device, given.wheels.resolve(), out, work).steps())
    finally:
        shutil.rmtree(work, ignore_errors=True)
    record = {"device": given.device, "steps": [asdict(step) for step in steps]}
    (out / "gpu.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    print(f"{'total':<12} {sum(step.seconds for step in steps):7.1f} s  {out / 'gpu.json'}")
    return 1 if any(step.outcome == "failed" for step in steps) else 0


if __name__ == "__main__":
    sys.exit(main())
