"""Two network namespaces as two hosts of one engine, and what happens to them: `python -m tools.two_hosts`.

Each fault befalls a fresh pair, while requests run whose clients have got nothing yet. Printed for each: seconds until
host 0 notices, seconds until it can answer again, and how many of the requests were answered whole. Needs root,
iproute2 and curl.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

SPACES = ("tessera-host-0", "tessera-host-1")
ADDRESSES = ("10.213.7.1", "10.213.7.2")
LINKS = ("tessera-v0", "tessera-v1")
PORT, REQUESTS, TOKENS = 8000, 24, 400
READY_SECONDS = 180.0
DIED = "tessera.engine.supervisor: engine process"
BODY = {"prompt": "Once upon a time", "max_tokens": TOKENS, "ignore_eos": True, "temperature": 0.0}


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)


@contextmanager
def namespaces() -> Iterator[None]:
    for space in SPACES:
        ip("netns", "add", space)
    try:
        ip("link", "add", LINKS[0], "netns", SPACES[0], "type", "veth", "peer", "name", LINKS[1], "netns", SPACES[1])
        for space, link, address in zip(SPACES, LINKS, ADDRESSES, strict=True):
            ip("-n", space, "address", "add", f"{address}/24", "dev", link)
            ip("-n", space, "link", "set", link, "up")
            ip("-n", space, "link", "set", "lo", "up")
        yield
    finally:
        for space in SPACES:
            ip("netns", "delete", space)


@dataclass(frozen=True)
class Pair:
    hosts: tuple[subprocess.Popen[bytes], subprocess.Popen[bytes]]
    logs: tuple[Path, Path]

    @property
    def remote_worker(self) -> int:
        parent = self.hosts[1].pid
        children = Path(f"/proc/{parent}/task/{parent}/children").read_text(encoding="ascii").split()
        return next(int(pid) for pid in children if b"worker_process" in Path(f"/proc/{pid}/cmdline").read_bytes())

    def count_restarts(self) -> int:
        return len(re.findall(DIED + r" \d+: ", self.logs[0].read_text(encoding="utf-8")))


@contextmanager
def pair(model: str | None, folder: Path) -> Iterator[Pair]:
    """A server on the first host; the other has joined it."""
    flags = ["--nnodes", "2", "--master-addr", ADDRESSES[0], "--tensor-parallel-size", "2", "--max-num-seqs", "4",
             "--host", "127.0.0.1", "--port", str(PORT), "--kv-cache-memory-bytes", "64MiB"]  # fmt: skip
    logs = (folder / "host-0.log", folder / "host-1.log")
    started = []
    for rank, log in enumerate(logs):
        command = ["ip", "netns", "exec", SPACES[rank], sys.executable, "-m", "tessera.cli", "serve"]
        command += [*([] if model is None else [model]), *flags, "--node-rank", str(rank)]
        with log.open("wb") as file:
            started.append(subprocess.Popen(command, stdout=file, stderr=file, process_group=0))
    both = Pair((started[0], started[1]), logs)
    try:
        wait(lambda: is_ready(both), READY_SECONDS, f"not ready:\n{logs[0].read_text(encoding='utf-8')}")
        yield both
    finally:
        for process in started:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGCONT)
                process.terminate()
        for process in started:
            try:
                process.wait(40)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)


def is_ready(both: Pair) -> bool:
    """Asked within its own namespace, where no fault of the link reaches."""
    if both.hosts[0].poll() is not None:
        raise RuntimeError(both.logs[0].read_text(encoding="utf-8"))
    asked = ["ip", "netns", "exec", SPACES[0], "curl", "-sf", "-m", "5", f"http://127.0.0.1:{PORT}/readyz"]
    return subprocess.run(asked, capture_output=True, check=False).returncode == 0


def wait(is_true: Callable[[], bool], seconds: float, problem: str) -> float:
    """Seconds until it is. Raises RuntimeError."""
    began = time.monotonic()
    while not is_true():
        if time.monotonic() - began > seconds:
            raise RuntimeError(problem)
        time.sleep(0.05)
    return time.monotonic() - began


def kill_worker(both: Pair) -> None:
    os.kill(both.remote_worker, signal.SIGKILL)


def stop_worker(both: Pair) -> None:
    os.kill(both.remote_worker, signal.SIGSTOP)


def cut_link(_: Pair) -> None:
    ip("-n", SPACES[1], "link", "set", LINKS[1], "down")


FAULTS: dict[str, Callable[[Pair], None]] = {
    "the worker of host 1 is killed": kill_worker,
    "the worker of host 1 is stopped": stop_worker,
    "the link is cut for 60 s": cut_link,
}


async def answers() -> list[int]:
    """The status of each request; more than can run at once."""
    async with httpx.AsyncClient(timeout=300) as client:
        url = f"http://127.0.0.1:{PORT}/v1/completions"
        responses = await asyncio.gather(*(client.post(url, json=BODY) for _ in range(REQUESTS)))
    return [response.status_code for response in responses]


def measure(name: str, fault: Callable[[Pair], None], model: str | None) -> None:
    with namespaces(), tempfile.TemporaryDirectory() as folder, pair(model, Path(folder)) as both:
        command = [sys.executable, "-c", "import asyncio, tools.two_hosts as t; print(*asyncio.run(t.answers()))"]
        load = subprocess.Popen(["ip", "netns", "exec", SPACES[0], *command], stdout=subprocess.PIPE, text=True)
        time.sleep(2.0)
        fault(both)
        noticed = wait(lambda: both.count_restarts() > 0, 90.0, f"{name}: nobody noticed")
        if fault is cut_link:
            time.sleep(max(0.0, 60.0 - noticed))
            ip("-n", SPACES[1], "link", "set", LINKS[1], "up")
        again = wait(lambda: is_ready(both), READY_SECONDS, f"{name}: it does not serve again")
        output, _ = load.communicate(timeout=600)
        statuses = output.split()
        print(f"{name}: noticed after {noticed:.1f} s, served again {again:.1f} s later; "
              f"{statuses.count('200')} of {len(statuses)} answers came whole", flush=True)  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="the bundled demo if left out")
    model = parser.parse_args().model
    for name, fault in FAULTS.items():
        measure(name, fault, model)
    return 0


if __name__ == "__main__":
    sys.exit(main())
