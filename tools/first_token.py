"""From nothing to a first served token on a chip that has only a torch device: `python -m tools.first_token`.

In an empty folder, a package is generated, installed, discovered, tested at bronze, and serves a chat. Prints each
command with its seconds, and the number of hand-written lines. The chip is tests/torch_fakechip, in place of a vendor's
torch extension; its device is compiled before timing starts. Nothing is downloaded.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tessera.plugins.template import count_written_lines
from tools.gpu.chat import QUESTION, FailedError, one_chat

ROOT = Path(__file__).parents[1]
CHIP = ROOT / "tests/torch_fakechip"
NAME = "fakechip"
NEW = ("plugin", "new", NAME, "--device", "fakechip", "--registers", "torch_fakechip", "--yes")
PIP = ("install", "--no-deps", "--no-index", "--no-build-isolation", "--quiet", "--disable-pip-version-check")
STEP_SECONDS = 200
FITS = ("--max-num-batched-tokens", "128", "--max-num-seqs", "8")  # what attention by reference fits into 256 MiB


class Walk:
    """work: an empty folder. seconds: the duration of each command, as a user would type it."""

    def __init__(self, work: Path) -> None:
        self.work, self.site, self.package = work, work / "site", work / f"tessera-{NAME}"
        path = [str(self.site), str(ROOT / "core"), str(ROOT / "platforms/cpu")]
        self.environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path), "OMP_NUM_THREADS": "1"}
        self.seconds: dict[str, float] = {}

    def take(self) -> str:
        """Runs all steps and returns the answer. Raises FailedError at the first step that fails."""
        self._install_vendor_extension()
        self._step("tessera " + " ".join(NEW), lambda: self._tessera(*NEW))
        self._step(f"pip install --no-deps {self.package.name}", lambda: self._install(self.package))
        listed = self._step("tessera platforms", lambda: self._tessera("platforms"))
        if not any(line.split()[:2] == ["*", NAME] for line in listed.splitlines()):
            raise FailedError(f"{NAME} is not the chosen platform:\n{listed}")
        bronze = ("conformance", "--platform", NAME, "--level", "bronze")
        self._step("tessera " + " ".join(bronze), lambda: self._tessera(*bronze))
        serve = ("serve", "--platform", NAME, *FITS)
        return self._step(f"tessera {' '.join(serve)}, ready and asked: {QUESTION}", lambda: self._chat(*serve))

    def lines(self) -> int:
        """The number of hand-written lines."""
        return sum(count_written_lines(self.package).values())

    def _install_vendor_extension(self) -> None:
        """Installs the chip's torch extension, which the vendor already has."""
        self._install(CHIP)
        self.environment["TORCH_FAKECHIP_BUILD"] = os.environ.get("TORCH_FAKECHIP_BUILD", str(CHIP / ".build"))
        self._run(sys.executable, "-c", "import torch_fakechip")

    def _step(self, command: str, act: Callable[[], str]) -> str:
        begin = time.perf_counter()
        said = act()
        self.seconds[command] = time.perf_counter() - begin
        print(f"{self.seconds[command]:6.1f} s  {command}", flush=True)
        return said

    def _tessera(self, *arguments: str) -> str:
        return self._run(sys.executable, "-m", "tessera.cli", *arguments)

    def _install(self, folder: Path) -> str:
        return self._run(sys.executable, "-m", "pip", *PIP, "--target", str(self.site), str(folder))

    def _chat(self, *arguments: str) -> str:
        command = [sys.executable, "-m", "tessera.cli", *arguments]
        return str(one_chat(command, self.work / "serve.log", self.work, self.environment)["answer"])

    def _run(self, *command: str) -> str:
        done = subprocess.run(
            command,
            cwd=self.work,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=STEP_SECONDS,
            check=False,
        )
        if done.returncode != 0:
            raise FailedError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
        return done.stdout


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="tessera-first-token-") as work:
        walk = Walk(Path(work))
        try:
            answer = walk.take()
        except FailedError as error:
            print(error, file=sys.stderr)
            return 1
        print(f"{sum(walk.seconds.values()):6.1f} s  in all, {walk.lines()} lines written by hand: {answer.strip()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
