"""Deaths, hangs and signals, with the processes that a user has; what is left of them is nothing."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.served import Served
from tests.models.tiny import write_tiny_model

DEMO = "tessera-demo"
WORDS = "periwinkle"
LONG = {"model": DEMO, "prompt": f"Tell me of {WORDS}.", "max_tokens": 900, "ignore_eos": True, "stream": True}
SHORT = {"model": DEMO, "max_tokens": 12, "temperature": 1.0, "stream": True}


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where the processes of a test have their sockets (tmp_path is too long for them). Nothing may be left there, nor
    in shared memory."""
    shared = shared_memory()
    with tempfile.TemporaryDirectory(prefix="staying-") as folder:
        monkeypatch.setenv("TMPDIR", folder)
        yield Path(folder)
        assert sockets_in(Path(folder)) == []
    asyncio.run(until(lambda: shared_memory() <= shared, 20))  # others of this machine may have some for a moment


def shared_memory() -> set[Path]:
    """But the semaphores of Python's multiprocessing, which Tessera does not use and others leave."""
    return {path for path in Path("/dev/shm").iterdir() if not path.name.startswith("sem.mp-")}


def sockets_in(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.name.startswith("tessera-")]


def family(pid: int) -> list[int]:
    """A process and all below it."""
    children = [
        int(child) for task in Path(f"/proc/{pid}/task").iterdir() for child in (task / "children").read_text().split()
    ]
    return [pid, *(member for child in children for member in family(child))]


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


async def until(condition: Any, seconds: float) -> float:
    """The seconds it took."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < seconds, "it did not come true in time"
        await asyncio.sleep(0.01)
    return time.monotonic() - began


def waiting(served: Served) -> float:
    text = httpx.get(f"{served.url}/metrics", timeout=60).text
    return float(
        next(line for line in text.splitlines() if line.startswith("tessera:num_requests_waiting{")).split()[-1]
    )


class Stream:
    """One streamed completion, read from the start to its end."""

    def __init__(self, client: httpx.AsyncClient, body: dict[str, Any]) -> None:
        self.begun = asyncio.Event()
        self.status = 0
        self.events: list[str] = []
        self.ended = 0.0
        self.task = asyncio.create_task(self._read(client, body))

    async def _read(self, client: httpx.AsyncClient, body: dict[str, Any]) -> None:
        async with client.stream("POST", "/v1/completions", json=body) as response:
            self.status = response.status_code
            async for line in response.aiter_lines():
                if line:
                    self.events.append(line.removeprefix("data: "))
                    self.begun.set()
        self.ended = time.monotonic()

    @property
    def text(self) -> str:
        assert self.events[-1] == "[DONE]"
        return "".join(json.loads(event)["choices"][0]["text"] for event in self.events[:-1])


def shorts(client: httpx.AsyncClient) -> list[Stream]:
    return [Stream(client, {**SHORT, "prompt": f"{WORDS} {seed}", "seed": seed}) for seed in range(16)]


async def half_begun(client: httpx.AsyncClient) -> tuple[list[Stream], list[Stream]]:
    """32 streams where 16 run at once: those that have had a token, and those that wait for them."""
    given = [Stream(client, {**LONG, "seed": seed}) for seed in range(16)]
    await asyncio.gather(*(stream.begun.wait() for stream in given))
    return given, shorts(client)


def assert_cut_off(given: list[Stream]) -> None:
    for stream in given:
        assert json.loads(stream.events[-2])["error"]["type"] == "engine_error"
        assert stream.events[-1] == "[DONE]"


async def test_three_deaths(tmp_path: Path, temporary: Path) -> None:
    """Killed under 32 streams, stopped, killed again: two engines follow, and then the server ends."""
    flags = [
        "--dtype",
        "float32",
        "--max-num-seqs",
        "16",
        "--stall-timeout",
        "6",
        "--log-format",
        "json",
        "--log-level",
        "debug",
    ]
    with Served(flags, tmp_path / "log") as served:
        async with httpx.AsyncClient(
            base_url=served.url, timeout=300, limits=httpx.Limits(max_connections=64)
        ) as client:
            undisturbed = shorts(client)
            await asyncio.gather(*(stream.task for stream in undisturbed))
            given, others = await half_begun(client)
            whole = asyncio.create_task(
                client.post("/v1/completions", json={**SHORT, "prompt": f"{WORDS} 3", "seed": 3, "stream": False})
            )
            await until(lambda: waiting(served) == 17, 20)
            old = family(served.engine_pid())
            os.kill(old[0], signal.SIGKILL)
            killed = time.monotonic()
            await until(lambda: served.status("/readyz") == 503, 10)
            assert served.status("/livez") == 200
            refused = await client.post("/v1/completions", json={**SHORT, "prompt": "x"})
            assert refused.status_code == 503
            assert "retry-after" in refused.headers
            await asyncio.gather(*(stream.task for stream in given))
            print(f"16 streams ended {max(stream.ended for stream in given) - killed:.2f} s after the kill")
            assert max(stream.ended for stream in given) - killed < 20
            assert_cut_off(given)
            await until(lambda: served.status("/readyz") == 200, 3 * served.seconds + 60)
            seconds = time.monotonic() - killed
            print(f"first start {served.seconds:.1f} s, ready again {seconds:.1f} s after the kill")
            await asyncio.gather(*(stream.task for stream in others))
            assert [stream.status for stream in others] == [200] * 16
            assert [stream.text for stream in others] == [stream.text for stream in undisturbed]
            assert (await whole).json()["choices"][0]["text"] == undisturbed[3].text
            assert not any(map(alive, old))

            stopped = served.engine_pid()
            os.kill(stopped, signal.SIGSTOP)
            again = shorts(client)
            seconds = await until(lambda: served.status("/health") == 503, 30)
            print(f"/health is 503 {seconds:.1f} s after SIGSTOP")
            assert served.status("/livez") == 200
            await asyncio.gather(*(stream.task for stream in again))
            assert [stream.text for stream in again] == [stream.text for stream in undisturbed]
            assert not alive(stopped)

            os.kill(served.engine_pid(), signal.SIGKILL)
            assert await asyncio.to_thread(served.process.wait, 20) == 4
    lines = served.log.read_text().splitlines()
    records = [json.loads(line) for line in lines]
    assert [record["level"] for record in records if "The server is shutting down." in record["message"]] == ["ERROR"]
    (stacks,) = [record["message"] for record in records if record["message"].startswith("stacks of")]
    assert f"process {stopped}" in stacks
    assert "in run" in stacks
    assert sum(record["message"] == "replayed" and "request_id" in record for record in records) == 33
    assert sum(record["message"].startswith("ended: ") and "request_id" in record for record in records) >= 48
    assert {record["pid"] for record in records} > {served.process.pid, stopped}
    assert not any(WORDS in line for line in lines)
    assert not any(undisturbed[3].text[:20] in line for line in lines)


@pytest.mark.nightly
async def test_a_stopped_engine_is_found_within_30_s(tmp_path: Path, temporary: Path) -> None:
    """With the --stall-timeout that a server has unasked."""
    with Served(["--dtype", "float32", "--max-num-seqs", "16"], tmp_path / "log") as served:
        async with httpx.AsyncClient(
            base_url=served.url, timeout=300, limits=httpx.Limits(max_connections=64)
        ) as client:
            undisturbed = shorts(client)
            await asyncio.gather(*(stream.task for stream in undisturbed))
            given, others = await half_begun(client)
            await until(lambda: waiting(served) == 16, 20)
            os.kill(served.engine_pid(), signal.SIGSTOP)
            stopped = time.monotonic()
            await until(lambda: served.status("/health") == 503, 30)
            unhealthy = time.monotonic() - stopped
            assert served.status("/livez") == 200
            await asyncio.gather(*(stream.task for stream in given))
            ended = max(stream.ended for stream in given) - stopped
            print(f"/health is 503 {unhealthy:.1f} s after SIGSTOP, 16 streams ended after {ended:.1f} s")
            assert ended < 30
            assert_cut_off(given)
            await asyncio.gather(*(stream.task for stream in others))
            assert [stream.text for stream in others] == [stream.text for stream in undisturbed]


async def test_sigterm_drains_and_a_second_one_cuts_off(tmp_path: Path, temporary: Path) -> None:
    with Served(["--dtype", "float32"], tmp_path / "log") as served:
        old = family(served.process.pid)
        async with httpx.AsyncClient(base_url=served.url, timeout=300) as client:
            stream = Stream(client, {**LONG, "max_tokens": 60})
            endless = Stream(client, {**LONG, "n": 16})
            await asyncio.gather(stream.begun.wait(), endless.begun.wait())
            served.process.send_signal(signal.SIGTERM)
            await until(lambda: served.status("/livez") == 0, 30)
            await stream.task
            assert stream.events[-1] == "[DONE]"
            assert "error" not in stream.events[-2]
            served.process.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(served.process.wait, 30) == 1
            await endless.task
            assert "error" in json.loads(endless.events[-2])
        assert not any(map(alive, old))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_while_the_model_loads_ends_it(tmp_path: Path, temporary: Path, number: int) -> None:
    for _ in range(5):
        with Served([], tmp_path / "log", wait=False) as served:
            live = served.status("/livez")
            async with httpx.AsyncClient(base_url=served.url, timeout=60) as client:
                answer = await client.post("/v1/completions", json={**SHORT, "prompt": "x"})
            old = family(served.process.pid)
            if served.status("/readyz") == 200:
                continue  # a busy machine loaded the model before this process had its turn
            assert live == 200
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
            assert len(old) >= 2
            served.process.send_signal(number)
            assert served.process.wait(30) == 0
            assert not any(map(alive, old))
            assert "Traceback" not in served.log.read_text()
            return
    pytest.fail("the model was always loaded already")


async def test_nothing_is_left_of_two_workers_however_it_ends(
    tmp_path: Path, temporary: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The engine is killed, and then, with a stopped engine, the server."""
    model = write_tiny_model(tmp_path_factory.mktemp("model"))
    with Served([str(model), "--tensor-parallel-size", "2"], tmp_path / "log") as served:
        old, sockets = family(served.engine_pid()), sockets_in(temporary)
        assert len(sockets) == 1
        assert len(old) == 4  # the engine, its guard and two workers
        os.kill(old[0], signal.SIGKILL)
        await until(lambda: served.status("/readyz") == 503, 30)
        await until(lambda: served.status("/readyz") == 200, 300)
        assert not any(map(alive, old))
        assert len(sockets_in(temporary)) == 1
        assert sockets_in(temporary) != sockets

        everyone = family(served.process.pid)
        assert len(everyone) >= 4
        os.kill(served.engine_pid(), signal.SIGSTOP)
        os.kill(served.process.pid, signal.SIGKILL)
        served.process.wait(30)
        await until(lambda: not any(map(alive, everyone)), 30)
        await until(lambda: sockets_in(temporary) == [], 30)
        assert served.status("/livez") == 0


def test_a_closed_log_pipe_does_not_end_the_server(tmp_path: Path, temporary: Path) -> None:
    served = Served([], tmp_path / "log")
    process = subprocess.Popen(served.command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        assert process.stdout is not None
        process.stdout.close()
        asyncio.run(until(lambda: served.status("/readyz") == 200, 90))
        answer = httpx.post(f"{served.url}/v1/completions", json={**SHORT, "stream": False, "prompt": "x"}, timeout=20)
        assert answer.status_code == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.wait()
