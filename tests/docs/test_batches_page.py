"""docs/batches.md: its programs run against the served demo, and its numbers are those of the code."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import get_args

from tessera.server.batches import jobs, runner, storage
from tessera.server.batches.input_file import MAX_ERRORS
from tessera.server.batches.protocol import ENDPOINTS, Status
from tessera.server.settings import Limits, ServerSettings
from tests.e2e.served import Served

PAGE = (Path(__file__).parents[2] / "docs" / "batches.md").read_text(encoding="utf-8")
SNIPPETS = dict(re.findall(r"<!-- run: (\w+) -->\n```\w+\n(.*?)```", PAGE, re.DOTALL))
ANSWERS = {"france The capital of France is Paris.", "sum 12 plus 30 is 42."}


def test_the_client_prints_each_answer(tmp_path: Path) -> None:
    with Served([], tmp_path / "log") as served:
        text = SNIPPETS["client"].replace("127.0.0.1:8000", f"127.0.0.1:{served.port}")
        done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    first, *others = done.stdout.splitlines()
    assert first == "completed 2 of 2"
    assert set(others) == ANSWERS


def test_the_command_answers_the_file(tmp_path: Path) -> None:
    (tmp_path / "tessera").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m tessera.cli "$@"\n')
    (tmp_path / "tessera").chmod(0o700)
    done = subprocess.run(
        ["bash", "-ec", SNIPPETS["offline"]],
        cwd=tmp_path,
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "2 requests: 2 answered, 0 failed" in done.stderr
    assert (tmp_path / "answers.jsonl").read_text().count("\n") == 2


def test_each_program_is_run() -> None:
    assert set(SNIPPETS) == {"client", "offline"}


def test_each_status_and_endpoint_is_there() -> None:
    rows = re.findall(r"^\| (`[^|]*) \|", PAGE, re.MULTILINE)
    assert {name for row in rows for name in re.findall(r"`(\w+)`", row)} == set(get_args(Status))
    assert all(f"`{endpoint}`" in PAGE for endpoint in ENDPOINTS)


def test_the_numbers_are_those_of_the_code() -> None:
    limits, settings = Limits(), ServerSettings()
    for text in (
        f"at most {limits.file_bytes >> 20} MiB (`--max-file-bytes`)",
        f"a batch at most {limits.batch_lines} requests",
        f"`--batch-store-bytes` ({settings.batch_store_bytes >> 30} GiB)",
        f"at most {storage.MAX_FILES} files",
        f"{jobs.MAX_OPEN} batches that have not ended",
        f"The last {jobs.MAX_ENDED} that have ended",
        f"Up to {jobs.MAX_RUNNING} batches run at once",
        f"lists up to {MAX_ERRORS} of them",
    ):
        assert text in " ".join(PAGE.split()), text
    assert runner.TRIES == 3
    assert "up to three times" in PAGE
