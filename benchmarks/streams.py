"""Whether a server starves any of many streams at once, and what they cost the front end.

    python -m benchmarks.streams --streams 1000 --rounds 3

Starts `tessera serve` with the bundled demo, whose engine takes little time, and lets all streams run at once, several
times. Printed are, for each round: tokens and events a second; the time to the first token and the longest silence of a
stream, the worst of all streams beside the median; processor time of the front end for an event; and its resident
memory, which must not grow from round to round.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx

from benchmarks.http_load import HOST, percentile
from benchmarks.served import free_port
from benchmarks.soak import END_SECONDS, MIB, resident, until_ready

TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Stream:
    """arrived: when each event with text came, after `sent`. ended: whether it ended as it should."""

    sent: float
    arrived: list[float]
    ended: bool

    @property
    def first(self) -> float:
        return self.arrived[0] - self.sent

    @property
    def silence(self) -> float:
        """The longest time between two events."""
        return max(
            (later - earlier for earlier, later in zip(self.arrived, self.arrived[1:], strict=False)), default=0.0
        )


def request(number: int, tokens: int) -> bytes:
    messages = [{"role": "user", "content": f"Count from {number}."}]
    body = {"messages": messages, "max_tokens": tokens, "ignore_eos": True, "stream": True, "seed": number}
    data = json.dumps(body).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: {HOST}\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(data)}\r\nConnection: close\r\n\r\n".encode() + data


async def streamed(port: int, data: bytes) -> Stream:
    reader, writer = await asyncio.open_connection(HOST, port)
    try:
        sent = time.perf_counter()
        writer.write(data)
        arrived, ended = [], False
        async for line in reader:
            if line.startswith(b'data: {"id"') and b'"content":""' not in line:
                arrived.append(time.perf_counter())
            ended = ended or line.startswith(b"data: [DONE]")
        return Stream(sent, arrived, ended)
    finally:
        writer.close()


def processor_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def summary(streams: Sequence[Stream], tokens: int, seconds: float, processor: float) -> str:
    starved = sum(not stream.ended or not stream.arrived for stream in streams)
    whole = [stream for stream in streams if stream.arrived]
    firsts, silences = [stream.first for stream in whole], [stream.silence for stream in whole]
    events = sum(len(stream.arrived) for stream in whole)
    return (
        f"{len(streams) * tokens / seconds:6.0f} tokens/s, {events / seconds:6.0f} events/s; "
        f"first token {percentile(firsts, 50):.2f} s, worst {max(firsts):.2f}; "
        f"longest silence {percentile(silences, 50):.2f} s, worst {max(silences):.2f}; "
        f"{1e6 * processor / events:.0f} us of the front end an event; {starved} without an end"
    )


async def run(front: int, port: int, options: argparse.Namespace) -> None:
    async with httpx.AsyncClient(base_url=f"http://{HOST}:{port}", timeout=20) as http:
        await until_ready(http)
    await streamed(port, request(0, 2))
    for number in range(options.rounds):
        asked = [request(number * options.streams + place, options.tokens) for place in range(options.streams)]
        began, processor = time.perf_counter(), processor_seconds(front)
        streams = await asyncio.gather(*(streamed(port, one) for one in asked))
        seconds, used = time.perf_counter() - began, processor_seconds(front) - processor
        print(f"round {number + 1}: {summary(streams, options.tokens, seconds, used)}", flush=True)
        print(f"         resident memory of the front end: {resident(front) / MIB:.1f} MiB", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--streams", type=int, default=1000, help="streams at once")
    parser.add_argument("--tokens", type=int, default=64, help="tokens of each")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    port = free_port()
    command = [sys.executable, "-m", "tessera.cli", "serve", "--port", str(port), "--disable-log-requests"]
    command += ["--max-num-seqs", str(options.streams)]
    with subprocess.Popen(command, start_new_session=True) as server:
        try:
            asyncio.run(run(server.pid, port, options))
        finally:
            server.send_signal(signal.SIGTERM)
            server.wait(END_SECONDS)


if __name__ == "__main__":
    main()
