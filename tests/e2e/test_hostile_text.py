"""A model folder whose tokenizer would stop the server: it answers, goes on and ends."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.served import Served
from tests.models.tiny import write_tiny_model

GROWS = {"type": "Replace", "pattern": {"String": "#"}, "content": "#" * 4000}
NORMALIZER = {"type": "Sequence", "normalizers": [GROWS] * 3}
PANICS = {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated", "invert": False}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("plain"))


def with_parts(plain: Path, folder: Path, **parts: Any) -> Path:
    """A copy whose tokenizer.json has other parts."""
    shutil.copytree(plain, folder)
    path = folder / "tokenizer.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **parts}))
    return folder


def ask(server: Served, path: str, **fields: Any) -> tuple[int, Any]:
    request = urllib.request.Request(
        server.url + path, json.dumps(fields).encode(), {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def test_a_hostile_tokenizer_stops_its_own_requests_alone(plain: Path, tmp_path: Path) -> None:
    folder = with_parts(plain, tmp_path / "grows", normalizer=NORMALIZER, pre_tokenizer=PANICS)
    with Served([str(folder), "--dtype", "float32", "--served-model-name", "m"], tmp_path / "log") as server:
        for path in ("/v1/completions", "/tokenize"):
            status, body = ask(server, path, model="m", prompt="#")
            assert (status, body["error"]["code"]) == (400, "text_limit_exceeded")
            assert body["error"]["message"].endswith("more than the limit of 512 MiB of memory.")
            assert server.status("/livez") == 200
        status, body = ask(server, "/v1/completions", model="m", prompt="a" * 60 + "!")
        assert (status, body["error"]["type"]) == (400, "invalid_request_error")
        assert body["error"]["message"].startswith("The model's tokenizer cannot encode this text: ")
        status, body = ask(server, "/v1/completions", model="m", prompt="b c", max_tokens=4)
        assert (status, len(body["choices"])) == (200, 1)
        with urllib.request.urlopen(server.url + "/metrics") as metrics:
            assert 'tessera:text_worker_restarts_total{model_name="m"} 3' in metrics.read().decode()
        server.process.send_signal(signal.SIGTERM)
        began = time.monotonic()
        assert server.process.wait(30) == 0
        assert time.monotonic() - began < 30
    log = (tmp_path / "log").read_text()
    assert log.count("another takes its place") == 3
    assert "Traceback" not in log
    assert "panicked" not in log


def test_a_decoder_that_grows_text_is_refused_at_the_start(plain: Path, tmp_path: Path) -> None:
    folder = with_parts(plain, tmp_path / "decoder", decoder={"type": "Sequence", "decoders": [GROWS] * 2})
    done = subprocess.run(
        [sys.executable, "-m", "tessera.cli", "serve", str(folder), "--port", "0"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 3
    assert "tokenizer.json has a decoder that can make 16000000 bytes of text of each byte" in done.stderr
    assert "Traceback" not in done.stderr
