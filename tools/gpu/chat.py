"""A server in a process of its own, and what it is asked: one chat, a streamed one, several at once."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

QUESTION, ANSWER = "What is the capital of France?", "Paris"
READY_SECONDS, ANSWER_SECONDS = 180, 120
Figures = dict[str, Any]


class FailedError(Exception):
    """Something did not have the expected result; the message says what."""


@dataclass(frozen=True)
class Server:
    """A server that is ready. ready_s: seconds from process start. tokens: the most of an answer."""

    url: str
    model: str
    ready_s: float
    tokens: int = 32

    def chat(self) -> str:
        """The answer to the question. Raises FailedError if it is another one."""
        told = _json(f"{self.url}/v1/chat/completions", self._asking())
        return _right(told["choices"][0]["message"]["content"])

    def streamed(self) -> tuple[str, float]:
        """The answer, put together from the events, and the seconds until the first text. Raises FailedError."""
        began, first, parts = time.perf_counter(), 0.0, []
        with _opened(f"{self.url}/v1/chat/completions", {**self._asking(), "stream": True}) as events:
            for line in events:
                data = line.decode().strip().removeprefix("data: ")
                if data in ("", "[DONE]"):
                    continue
                for choice in json.loads(data)["choices"]:
                    text = choice["delta"].get("content") or ""
                    first = first or (time.perf_counter() - began if text else 0.0)
                    parts.append(text)
        return _right("".join(parts)), first

    def at_once(self, clients: int) -> float:
        """Seconds until all of so many clients have the answer. Raises FailedError."""
        began = time.perf_counter()
        with ThreadPoolExecutor(clients) as pool:
            for asked in [pool.submit(self.chat) for _ in range(clients)]:
                asked.result()
        return time.perf_counter() - began

    def _asking(self) -> Figures:
        messages = [{"role": "user", "content": QUESTION}]
        return {"model": self.model, "messages": messages, "max_tokens": self.tokens, "temperature": 0}


@contextmanager
def served(
    command: Sequence[str], log: Path, folder: Path, environment: Mapping[str, str] | None = None, tokens: int = 32
) -> Iterator[Server]:
    """Starts a server, waits until it is ready, and ends it with the block. Raises FailedError if it does not become
    ready."""
    port = _free_port()
    begin = time.perf_counter()
    with log.open("wb") as file:
        process = subprocess.Popen(
            [*command, "--port", str(port)], stdout=file, stderr=subprocess.STDOUT, cwd=folder, env=environment
        )
    try:
        url = f"http://127.0.0.1:{port}"
        while not _is_ready(url):
            if process.poll() is not None or time.perf_counter() - begin > READY_SECONDS:
                last = log.read_text(errors="replace").strip().splitlines()[-1:]
                raise FailedError(f"the server is not ready: {' '.join(last)}")
            time.sleep(0.1)
        ready_s = time.perf_counter() - begin
        yield Server(url, _json(f"{url}/v1/models")["data"][0]["id"], ready_s, tokens)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()


def one_chat(command: Sequence[str], log: Path, folder: Path, environment: Mapping[str, str] | None = None) -> Figures:
    """Starts a server, asks the question, and ends the server. Raises FailedError if it does not become ready or gives
    another answer."""
    with served(command, log, folder, environment) as server:
        asked = time.perf_counter()
        answer = server.chat()
        seconds = time.perf_counter() - asked
        return {"ready_s": server.ready_s, "answer_s": seconds, "answer": answer, "model": server.model}


def _right(answer: str) -> str:
    if ANSWER not in answer:
        raise FailedError(f"{QUESTION} {answer}")
    return answer


def _is_ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/readyz", timeout=5) as answer:  # noqa: S310  # this script's own server
            return bool(answer.status == 200)
    except OSError:
        return False


def _json(url: str, body: Figures | None = None) -> Any:
    with _opened(url, body) as answer:
        return json.loads(answer.read())


@contextmanager
def _opened(url: str, body: Figures | None) -> Iterator[Any]:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})  # noqa: S310  # as above
    try:
        with urllib.request.urlopen(request, timeout=ANSWER_SECONDS) as answer:  # noqa: S310
            yield answer
    except urllib.error.HTTPError as error:
        with error:
            raise FailedError(f"{url} answered {error.code}: {error.read().decode()[:200]}") from error


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
