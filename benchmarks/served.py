"""An engine behind its own HTTP server: started, polled until it is ready, and loaded by clients."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.http_load import HOST, HttpError, Load, body, closed_loop, is_ready
from benchmarks.peers.byte_tokenizer import ids_of
from benchmarks.process import peak_bytes
from benchmarks.running import LONGEST_RUN, ROOT, EngineError, at_rest, ended_at_the_latest, last_line, output_file
from benchmarks.task import CHECK_TOKENS, Prompts, Task

READY_SECONDS = 600
REQUESTS_A_CLIENT = 3
FEWEST_REQUESTS = 4


@dataclass(frozen=True)
class Server:
    """How to start a server, and what its requests have."""

    command: Sequence[str]
    variables: Mapping[str, str]
    # Of requests, beside those that all servers get.
    fields: Mapping[str, Any]


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        return int(taken.getsockname()[1])


def run(name: str, server: Server, port: int, task: Task) -> Generator[dict[str, Any]]:
    """Yields a line when the server has answered once, and one per number of clients, each time the next is requested.
    Raises EngineError."""
    began = time.monotonic()
    with (
        output_file() as said,
        subprocess.Popen(
            server.command,
            cwd=ROOT,
            env=dict(server.variables),
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            start_new_session=True,
        ) as process,
        ended_at_the_latest(process, LONGEST_RUN),
    ):
        try:
            yield from _measured(server, process, port, task, began)
        except HttpError as error:
            ended = f"; its last line: {last_line(said)}" if process.poll() is not None else ""
            raise EngineError(f"{name} over HTTP: {error}{ended}") from error


def _measured(
    server: Server, process: subprocess.Popen[Any], port: int, task: Task, began: float
) -> Iterator[dict[str, Any]]:
    prompts = Prompts(task)

    def load(batch: Sequence[Sequence[int]], tokens: int, clients: int) -> Load:
        return asyncio.run(closed_loop(port, [body(prompt, tokens, server.fields) for prompt in batch], clients))

    asyncio.run(_until_ready(process, port))
    load(prompts.drawn(1, task.input), 1, 1)
    ready = time.monotonic() - began
    with at_rest(process):
        yield {"load_s": round(ready, 3)}
    for clients in task.batches:
        known = prompts.checked()[:clients]
        others = prompts.drawn(clients - len(known), len(known[0]))
        checked = load(known + others, CHECK_TOKENS, clients).answers[: len(known)]
        requests = max(FEWEST_REQUESTS, REQUESTS_A_CLIENT * clients)
        figures = load(prompts.drawn(requests, task.input), task.output, clients).figures()
        answers = [ids_of(answer.text) for answer in checked]
        if not all(answers):
            raise HttpError("an answer's text is not that of the tokenizer it was given")
        result = {"batch": clients, "values": {**figures, "ready_s": ready}, "peak_bytes": peak_bytes(process.pid)}
        with at_rest(process):
            yield {**result, "answers": answers}


async def _until_ready(process: subprocess.Popen[Any], port: int) -> None:
    until = time.monotonic() + READY_SECONDS
    while not await is_ready(port):
        if process.poll() is not None:
            raise HttpError(f"it ended with {process.returncode} before it was ready")
        if time.monotonic() > until:
            raise HttpError(f"it was not ready after {READY_SECONDS} s")
        await asyncio.sleep(0.02)
