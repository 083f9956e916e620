"""What the HTTP front ends of Tessera and vLLM cost, whatever their engines do: processor time a request and a token.

    python -m benchmarks.front_end --vllm ENVIRONMENT --rounds 3
    python -m benchmarks.front_end --beside TREE --rounds 8 --starts 7

The second compares with another tree of Tessera, such as that of an earlier commit, whose CPU kernels must have been
built, and with --starts also how long both take until they are ready.

Both servers run the bundled demo, each with its engine in a process of its own, and get the same two loads in turn:
chats that stream, and chats of one token that do not. Counted is the processor time of all of a server's processes but
the engine's: HTTP, chat template, tokenizer, detokenizer. From it follow the requests, events and tokens a second that
one core of a front end could serve. Time on the clock is no part of it, so the client may share the machine. Tessera
joins tokens that have come before the last event is sent, vLLM sends an event for each: events compare the two where
the engine is slower than the front end, tokens where it is faster. vLLM's environment is made as the page on peers in
benchmarks/README.md says.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from benchmarks.http_load import HOST, is_ready
from benchmarks.served import READY_SECONDS, free_port
from benchmarks.soak import END_SECONDS

TICKS = os.sysconf("SC_CLK_TCK")
ENGINES = ("tessera.engine", "VLLM::EngineCore")
"""What the command line of an engine's process has."""
NAME = "bench"

Figures = defaultdict[tuple[str, str], list[float]]


@dataclass(frozen=True)
class Load:
    """A closed loop. name: as it is printed. requests: of each client."""

    name: str
    clients: int
    requests: int
    tokens: int
    stream: bool

    def request(self, number: int) -> bytes:
        body: dict[str, Any] = {
            "model": NAME, "max_tokens": self.tokens, "ignore_eos": True, "stream": self.stream, "seed": number,
            "messages": [{"role": "user", "content": f"Tell me about the number {number}, and why it is one."}],
        }  # fmt: skip
        if self.stream:
            body["stream_options"] = {"include_usage": True}
        data = json.dumps(body).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: {HOST}\r\nContent-Type: application/json\r\n"
        return f"{head}Content-Length: {len(data)}\r\nConnection: close\r\n\r\n".encode() + data

    async def run(self, port: int) -> Done:
        done = Done()

        async def client(first: int) -> None:
            for number in range(first, first + self.requests):
                await self._ask(port, number, done)

        await asyncio.gather(*(client(place * self.requests) for place in range(self.clients)))
        return done

    async def _ask(self, port: int, number: int, done: Done) -> None:
        reader, writer = await asyncio.open_connection(HOST, port)
        try:
            writer.write(self.request(number))
            answer = await reader.read()
        finally:
            writer.close()
        if answer.split(maxsplit=2)[1] != b"200" or f'"completion_tokens":{self.tokens}'.encode() not in answer:
            raise RuntimeError(f"an answer is not as it should be: {answer[-300:]!r}")
        done.requests += 1
        done.tokens += self.tokens
        done.events += answer.count(b'"content":"') if self.stream else 1


@dataclass
class Done:
    requests: int = 0
    tokens: int = 0
    events: int = 0


def front_seconds(pid: int) -> float:
    """Processor time of a process and all below it, without engines."""
    children = defaultdict(list)
    used: dict[int, float] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()
            child = int(stat.parent.name)
            children[int(fields[1])].append(child)
            used[child] = (int(fields[11]) + int(fields[12])) / TICKS

    def total(process: int) -> float:
        line = Path(f"/proc/{process}/cmdline").read_text()
        if any(name in line for name in ENGINES):
            return 0.0
        return used[process] + sum(map(total, children[process]))

    return total(pid)


@contextlib.contextmanager
def served(command: list[str], variables: Mapping[str, str], port: int) -> Iterator[int]:
    """The process id of a server that is ready. Raises RuntimeError."""
    environment = {**os.environ, **variables}
    with subprocess.Popen(command, env=environment, start_new_session=True, stdout=subprocess.DEVNULL) as server:
        try:
            end = time.monotonic() + READY_SECONDS
            while not asyncio.run(is_ready(port)):
                if server.poll() is not None or time.monotonic() > end:
                    raise RuntimeError(f"{command[0]} did not get ready")
                time.sleep(0.05)
            yield server.pid
        finally:
            server.send_signal(signal.SIGTERM)
            try:
                server.wait(END_SECONDS)
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(server.pid, signal.SIGKILL)


def tessera(port: int, rows: int, tree: Path | None = None) -> tuple[list[str], dict[str, str]]:
    """tree: of another version, instead of the one that is installed."""
    command = [sys.executable, "-m", "tessera.cli", "serve", "--port", str(port), "--served-model-name", NAME]
    packages = [] if tree is None else [tree / "core", *sorted(tree.glob("platforms/*"))]
    variables = {"PYTHONPATH": os.pathsep.join(map(str, packages)), "PYTHONSAFEPATH": "1"} if packages else {}
    return [*command, "--disable-log-requests", "--max-num-seqs", str(rows)], variables


def vllm(environment: Path, port: int, rows: int) -> tuple[list[str], dict[str, str]]:
    model = str(files("tessera") / "demo")
    command = [str(environment / "bin/python"), "-m", "vllm.entrypoints.openai.api_server", "--model", model]
    command += ["--served-model-name", NAME, "--host", HOST, "--port", str(port), "--max-num-seqs", str(rows)]
    command += ["--disable-uvicorn-access-log", "--enforce-eager"]
    variables = {
        "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_NUM_OF_RESERVED_CPU": "0", "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1",
    }  # fmt: skip
    return command, variables


def measured(pids: Mapping[str, int], ports: Mapping[str, int], loads: Sequence[Load], rounds: int) -> Figures:
    """What a core serves in a second: tokens and events of streams, otherwise requests. By what and by server, one for
    each round."""
    figures: Figures = defaultdict(list)
    for number in range(rounds + 1):
        for load in loads:
            for name, pid in list(pids.items())[:: 1 if number % 2 else -1]:
                before = front_seconds(pid)
                done = asyncio.run(load.run(ports[name]))
                used = front_seconds(pid) - before
                units = {"tokens": done.tokens, "events": done.events} if load.stream else {"requests": done.requests}
                for unit, count in units.items() if number else ():  # the first warms up
                    figures[unit, name].append(count / used)
                    each = f"{1e6 * used / count:6.0f} us each, {count / used:6.0f} a second and core"
                    print(f"{name:8} {load.name}: {count:6} {unit}, {each}", flush=True)
    return figures


def starts(trees: Mapping[str, Path | None], times: int) -> None:
    """Prints how many seconds each takes until it is ready, in turn."""
    took: dict[str, list[float]] = {name: [] for name in trees}
    for number in range(times):
        for name, tree in list(trees.items())[:: 1 if number % 2 else -1]:
            port = free_port()
            command, variables = tessera(port, 64, tree)
            began = time.monotonic()
            with served(command, variables, port):
                took[name].append(time.monotonic() - began)
    for name, seconds in took.items() if times else ():
        print(f"{name:8} ready after {statistics.median(seconds):.2f} s ({min(seconds):.2f} to {max(seconds):.2f})")


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--vllm", type=Path, metavar="ENVIRONMENT", help="folder of vLLM's; without it Tessera alone")
    parser.add_argument("--beside", type=Path, metavar="TREE", help="folder of another version of Tessera")
    parser.add_argument("--starts", type=int, default=0, help="how often each version of Tessera is started (0)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--clients", type=int, default=64)
    options = parser.parse_args()
    loads = (
        Load("streams of 128 tokens", options.clients, 4, 128, stream=True),
        Load("requests of 1 token", options.clients, 16, 1, stream=False),
    )
    trees = {"tessera": None} if options.beside is None else {"tessera": None, "beside": options.beside.resolve()}
    starts(trees, options.starts)
    ports, pids = {"vllm": free_port()}, {}
    with contextlib.ExitStack() as stack:
        for name, tree in trees.items():
            ports[name] = free_port()
            command, variables = tessera(ports[name], options.clients, tree)
            pids[name] = stack.enter_context(served(command, variables, ports[name]))
        if options.vllm is not None:
            command, variables = vllm(options.vllm, ports["vllm"], options.clients)
            pids["vllm"] = stack.enter_context(served(command, variables, ports["vllm"]))
        figures = measured(pids, ports, loads, options.rounds)
    for unit, other in [(unit, other) for unit in ("tokens", "events", "requests") for other in pids]:
        if other != "tessera":
            ratios = [a / b for a, b in zip(figures[unit, "tessera"], figures[unit, other], strict=True)]
            print(f"{unit}: Tessera's front end serves {statistics.median(ratios):.2f} times as many a core as {other}")


if __name__ == "__main__":
    main()
