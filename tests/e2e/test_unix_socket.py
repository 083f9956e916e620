"""--uds with real processes: private, refused while it is in use, gone at the end."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx

from tests.models.tiny import write_tiny_model


def test_a_server_on_a_unix_socket(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    folder = write_tiny_model(tmp_path / "model")
    command = [sys.executable, "-m", "tessera.cli", "serve", str(folder), "--dtype", "float32", "--uds", str(path)]
    with (tmp_path / "log").open("wb") as log:
        server = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    try:
        _until_listening(path, server)
        with httpx.Client(
            transport=httpx.HTTPTransport(uds=str(path)), base_url="http://localhost", timeout=60
        ) as client:
            _until_ready(client)
            assert path.stat().st_mode & 0o777 == 0o600
            name = client.get("/v1/models").json()["data"][0]["id"]
            answer = client.post("/v1/completions", json={"model": name, "prompt": "abc", "max_tokens": 4}, timeout=30)
            assert answer.json()["usage"]["completion_tokens"] == 4
            second = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
            assert (second.returncode, second.stderr) == (
                7,
                f"error: Another server is listening on --uds '{path}'; stop it or choose another path.\n",
            )
            assert client.get("/livez").status_code == 200
        server.send_signal(signal.SIGTERM)
        assert server.wait(40) == 0
        assert not path.exists()
        assert "Traceback" not in (tmp_path / "log").read_text()
    finally:
        server.kill()
        server.wait(10)


def _until_listening(path: Path, server: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline and server.poll() is None:
        with socket.socket(socket.AF_UNIX) as probe:
            if probe.connect_ex(str(path)) == 0:
                return
        time.sleep(0.05)
    raise AssertionError(f"it does not listen, exit code {server.poll()}")


def _until_ready(client: httpx.Client) -> None:
    """It answers 503 while the model loads."""
    deadline = time.monotonic() + 90
    while (status := client.get("/readyz").status_code) != 200:
        assert status == 503
        assert time.monotonic() < deadline
        time.sleep(0.05)
