"""Gold: the server on the platform, with the bundled model, and many clients at once."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import httpx

from tessera.plugins.selection import end
from tessera.testing.conformance.case import PASSED, Case, ConformanceError, Verdict
from tessera.testing.conformance.target import Target

_CLIENTS, _ROUNDS, _PROMPTS, _TOKENS = 16, 2, 8, 16
_START_SECONDS, _ANSWER_SECONDS, _END_SECONDS = 120.0, 60.0, 40.0
_SUBJECT, _MODEL = "served API", "conformance"


def served_cases(target: Target) -> Iterator[Case]:
    yield Case("served/load", "gold", _SUBJECT, partial(_check, target))


def _check(target: Target) -> Verdict:
    """Answers under load are the same as without; /health stays 200; no process remains afterwards."""
    prompts = [f"{_START[number % len(_START)]} {number * 'very '}old" for number in range(_PROMPTS)]
    with server(target) as served, served.client() as client:
        alone = [answer(client, prompt) for prompt in prompts]
        with served.watched() as health:
            found = _under_load(served, prompts)
        for number, (prompt, text) in enumerate(found):
            expected = alone[prompts.index(prompt)]
            if target.exact_dtype == "float32" and text != expected:
                raise ConformanceError(
                    f"answer {number} to {prompt!r} is {text!r} under load, and {expected!r} without"
                )
        if health.bad:
            raise ConformanceError(f"under load, GET /health answered {health.bad[0]}")
    return PASSED


_START = ("The king was", "Once there was a", "A house is", "She said that")


@dataclass
class HealthLog:
    """bad: statuses other than 200."""

    bad: list[int | str]


@dataclass
class ServedPlatform:
    url: str
    log: Path
    process: subprocess.Popen[bytes]

    def client(self) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=_ANSWER_SECONDS, trust_env=False)

    def wait(self) -> None:
        deadline = time.monotonic() + _START_SECONDS
        with self.client() as client:
            while _status(client, "/readyz") != 200:
                if self.process.poll() is not None or time.monotonic() > deadline:
                    raise ConformanceError(f"tessera serve did not start: {self.last_line()}")
                time.sleep(0.05)

    def last_line(self) -> str:
        """The last line of the log that gives a reason, not one that refers to the log above."""
        lines = self.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        reasons = [line for line in lines if line.strip() and "the log above says why" not in line]
        return reasons[-1][-300:] if reasons else "its log is empty"

    @contextmanager
    def watched(self) -> Iterator[HealthLog]:
        """Polls /health until the context ends."""
        health, over = HealthLog([]), threading.Event()

        def watch() -> None:
            with self.client() as client:
                while not over.wait(0.1):
                    status = _status(client, "/health")
                    if status != 200:
                        health.bad.append(status)

        thread = threading.Thread(target=watch, name="conformance-health")
        thread.start()
        try:
            yield health
        finally:
            over.set()
            thread.join()

    def end(self) -> None:
        """Stops the server. Raises ConformanceError if it does not exit cleanly or leaves a process behind."""
        self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            raise ConformanceError(f"tessera serve is still running {_END_SECONDS:g} s after SIGTERM") from None
        if code:
            raise ConformanceError(f"tessera serve ended with exit code {code} after SIGTERM: {self.last_line()}")
        try:
            os.killpg(self.process.pid, 0)
        except ProcessLookupError:
            return
        raise ConformanceError("tessera serve ended and left a process running")


@contextmanager
def server(target: Target) -> Iterator[ServedPlatform]:
    """Runs `tessera serve` with the bundled model in its own process group, which ends with the context."""
    port = _free_port()
    command = [
        sys.executable, "-m", "tessera.cli", "serve", "--platform", target.path, "--dtype", target.exact_dtype,
        "--host", "127.0.0.1", "--port", str(port), "--served-model-name", _MODEL, "--max-num-seqs", "8",
        "--kv-cache-memory-bytes", str(1 << 25), *([] if target.brings_a_runner else ["--check-kv-cache"]),
    ]  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="tessera-conformance-") as folder:
        log = Path(folder, "log")
        with log.open("wb") as output:
            process = subprocess.Popen(
                command, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, start_new_session=True
            )
        served = ServedPlatform(f"http://127.0.0.1:{port}", log, process)
        try:
            served.wait()
            yield served
            served.end()
        finally:
            end(process)


def answer(client: httpx.Client, prompt: str) -> str:
    body: dict[str, Any] = {
        "model": _MODEL,
        "prompt": prompt,
        "max_tokens": _TOKENS,
        "temperature": 0,
        "ignore_eos": True,
    }
    answered = client.post("/v1/completions", json=body)
    if answered.status_code != 200:
        raise ConformanceError(f"POST /v1/completions answered {answered.status_code}: {answered.text[:200]}")
    found = answered.json()
    tokens = found["usage"]["completion_tokens"]
    if tokens != _TOKENS:
        raise ConformanceError(f"asked for {_TOKENS} tokens, the answer has {tokens}")
    return str(found["choices"][0]["text"])


def _under_load(served: ServedPlatform, prompts: list[str]) -> list[tuple[str, str]]:
    """Prompts and their answers. All clients send requests at the same time, each one several."""

    def ask_in_turn(number: int) -> list[tuple[str, str]]:
        with served.client() as client:
            mine = [prompts[(number + 5 * turn) % len(prompts)] for turn in range(_ROUNDS)]
            return [(prompt, answer(client, prompt)) for prompt in mine]

    with ThreadPoolExecutor(_CLIENTS) as pool:
        return [pair for pairs in pool.map(ask_in_turn, range(_CLIENTS)) for pair in pairs]


def _status(client: httpx.Client, path: str) -> int | str:
    try:
        return client.get(path).status_code
    except httpx.HTTPError as error:
        return type(error).__name__


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
