"""The server as a whole: processes, ports, ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import openai
import pytest

from tests.e2e.served import Served
from tests.models.tiny import write_tiny_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def server(folder: Path, tmp_path_factory: pytest.TempPathFactory):
    with Served([str(folder), "--dtype", "float32"], tmp_path_factory.mktemp("log") / "log") as served:
        yield served


@pytest.fixture
def api(server: Served):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_a_stream_says_what_one_answer_says(api: openai.OpenAI) -> None:
    ask = {"model": api.models.list().data[0].id, "prompt": "ab cd", "max_tokens": 24, "temperature": 0}
    whole = api.completions.create(**ask).choices[0]
    pieces = [chunk.choices[0] for chunk in api.completions.create(**ask, stream=True)]
    assert "".join(piece.text for piece in pieces) == whole.text
    assert pieces[-1].finish_reason == whole.finish_reason


def test_the_same_seed_says_the_same_beside_others(api: openai.OpenAI) -> None:
    model = api.models.list().data[0].id
    ask = {"model": model, "prompt": "abc", "max_tokens": 16, "temperature": 1.0, "seed": 7}
    alone = api.completions.create(**ask).choices[0].text
    among = api.completions.create(**{**ask, "prompt": ["xyz", "abc", "a"], "n": 2}).choices
    assert among[2].text == alone
    assert among[3].text != alone


def test_nothing_listens_but_the_port(server: Served) -> None:
    listening = {
        line.split()[1] for line in Path("/proc/net/tcp").read_text().splitlines()[1:] if line.split()[3] == "0A"
    }
    inodes = {
        os.readlink(link)
        for pid in (server.process.pid, server.engine_pid())
        for link in Path(f"/proc/{pid}/fd").iterdir()
        if link.exists() and os.readlink(link).startswith("socket:")
    }
    own = {
        line.split()[1]
        for line in Path("/proc/net/tcp").read_text().splitlines()[1:]
        if line.split()[1] in listening and f"socket:[{line.split()[9]}]" in inodes
    }
    assert own == {f"0100007F:{server.port:04X}"}


def test_sigterm_ends_it_all_with_exit_code_0(folder: Path, tmp_path: Path) -> None:
    with Served([str(folder), "--dtype", "float32"], tmp_path / "log") as served:
        engine = served.engine_pid()
        served.process.send_signal(signal.SIGTERM)
        assert served.process.wait(20) == 0
        assert not _alive(engine)
        assert served.status("/livez") == 0


def test_a_taken_port_is_one_line_and_exit_code_7(server: Served, folder: Path) -> None:
    command = [sys.executable, "-m", "tessera.cli", "serve", str(folder), "--port", str(server.port)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 7
    assert len([line for line in done.stderr.splitlines() if line.startswith("error: ")]) == 1
    assert "Traceback" not in done.stderr


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except OSError:
        return False
