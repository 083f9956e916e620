"""Several hosts, each a process of its own on this machine: they answer as one device, and start again as one."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.e2e.served import Served, free_port
from tests.models.tiny import write_tiny_model

ASKED = {"model": "m", "prompt": "a tiny model", "max_tokens": 12, "temperature": 0, "ignore_eos": True}


def workers_of(parent: int) -> list[int]:
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    return [int(pid) for pid in children if b"worker_process" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def until(is_true: Callable[[], bool], problem: str) -> None:
    end = time.monotonic() + 60
    while not is_true():
        assert time.monotonic() < end, problem
        time.sleep(0.1)


def text_of(served: Served) -> str:
    """Once there is an engine."""
    until(lambda: served.status("/readyz") == 200, "it is not ready again")
    answer = httpx.post(f"{served.url}/v1/completions", json=ASKED, timeout=90).json()
    text: str = answer["choices"][0]["text"]
    return text


@pytest.fixture
def arguments(tmp_path: Path) -> list[str]:
    model = write_tiny_model(tmp_path / "model")
    return [str(model), "--dtype", "float32", "--served-model-name", "m", "--kv-cache-memory-bytes", "16MiB"]


@contextmanager
def two_hosts(arguments: list[str], folder: Path) -> Iterator[tuple[Served, Served]]:
    key = folder / "key"
    key.write_text("a secret\n")
    cluster = ["--nnodes", "2", "--master-addr", "127.0.0.1", "--master-port", str(free_port()), "--cluster-key-file"]
    arguments = [*arguments, "--tensor-parallel-size", "2", *cluster, str(key)]
    with Served([*arguments, "--node-rank", "1"], folder / "host-1", wait=False) as other:
        with Served(arguments, folder / "host-0") as first:
            yield first, other
        assert other.process.wait(60) == 0, other.log.read_text()


def test_two_hosts_answer_as_one_and_start_again_as_one(arguments: list[str], tmp_path: Path) -> None:
    with Served(arguments, tmp_path / "alone") as served:
        alone = text_of(served)
    with two_hosts(arguments, tmp_path) as (first, other):
        assert text_of(first) == alone
        assert [other.status(path) for path in ("/livez", "/readyz", "/v1/models")] == [200, 200, 404]
        (worker,) = workers_of(other.process.pid)
        os.kill(worker, signal.SIGKILL)
        until(lambda: len(re.findall(r"engine process pid", first.log.read_text())) == 2, "nobody has noticed")
        assert text_of(first) == alone
        (again,) = workers_of(other.process.pid)
        assert again != worker
    log = first.log.read_text()
    assert "worker 1 of host 1 is gone; the log of that host says why." in log
    assert "Traceback" not in log
    assert "host 0 has ended the server" in other.log.read_text()
    assert not any(Path(f"/proc/{pid}").exists() for pid in (worker, again))


@pytest.mark.nightly
def test_a_host_whose_engine_is_killed_waits_for_the_next_one(arguments: list[str], tmp_path: Path) -> None:
    with two_hosts(arguments, tmp_path) as (first, other):
        alone = text_of(first)
        os.kill(first.engine_pid(), signal.SIGKILL)
        until(lambda: len(re.findall(r"engine process pid", first.log.read_text())) == 2, "nobody has noticed")
        assert text_of(first) == alone
        assert "host 0 is gone" in other.log.read_text()


def test_a_host_with_another_key_may_not_join(arguments: list[str], tmp_path: Path) -> None:
    cluster = ["--tensor-parallel-size", "2", "--nnodes", "2", "--master-addr", "127.0.0.1"]
    flags = [*arguments, *cluster, "--master-port", str(free_port())]
    (tmp_path / "key").write_text("a secret")
    key = ["--cluster-key-file", str(tmp_path / "key")]
    stranger = Served([*flags, *key, "--node-rank", "1"], tmp_path / "stranger", wait=False)
    with Served(flags, tmp_path / "keyless", wait=False) as waiting, stranger as refused:
        assert refused.process.wait(60) == 5
        last = refused.log.read_text().strip().splitlines()[-1]
        assert last.endswith("--cluster-key-file must name the same secret on all hosts.")
        assert waiting.status("/readyz") == 503
