"""logrotate, with the configuration of docs/operating.md, rotates the log of a server that goes on writing to it."""

from __future__ import annotations

import gzip
import os
import re
import subprocess
import sys
from pathlib import Path

import httpx

from tests.e2e.served import Served

ROOT = Path(__file__).parents[2]
FLAGS = ("--kv-cache-memory-bytes", "64MiB", "--log-format", "json")
APPENDING = 'log=$1; shift; exec "$@" >> "$log" 2>&1'
"""As that page has the shell do."""


def documented(folder: Path) -> str:
    """The configuration, for logs in a folder."""
    page = (ROOT / "docs/operating.md").read_text(encoding="utf-8")
    (configuration,) = re.findall(r"^/var/log/tessera/\*\.log \{\n.*?^\}\n", page, re.MULTILINE | re.DOTALL)
    return configuration.replace("/var/log/tessera", str(folder))


def ask(server: Served, request_id: str) -> None:
    headers = {"X-Request-Id": request_id}
    answer = httpx.post(
        f"{server.url}/v1/completions", json={"prompt": "a", "max_tokens": 1}, headers=headers, timeout=30
    )
    assert answer.status_code == 200


def test_lines_go_on_in_the_file_that_was_truncated(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    logs.mkdir(mode=0o755)  # logrotate works in no folder that others may write
    log, configuration = logs / "server.log", tmp_path / "logrotate.conf"
    configuration.write_text(documented(logs), encoding="utf-8")
    configuration.chmod(0o644)
    program = ["sh", "-c", APPENDING, "sh", str(log), sys.executable, "-m", "tessera.cli"]
    with Served(FLAGS, tmp_path / "unused", program) as server:
        ask(server, "before-rotation")
        rotate = ["logrotate", "--force", "--state", str(tmp_path / "state"), str(configuration)]
        done = subprocess.run(
            rotate,
            env=os.environ | {"PATH": f"{os.environ['PATH']}:/usr/sbin"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        ask(server, "after-rotation")
    (rotated,) = logs.glob("server.log.1*")
    assert rotated.suffix == ".gz"
    old, new = gzip.decompress(rotated.read_bytes()), log.read_bytes()
    assert b"before-rotation" in old
    assert b"before-rotation" not in new
    assert b"after-rotation" in new
    assert b"\0" not in new
