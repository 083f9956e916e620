"""What a hostile GGUF file is to its user: one line, exit code 3, soon and in little memory."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tessera.errors import ModelError
from tests.unit.gguf.test_bad_gguf_files import FILES

SECONDS = 20.0
"""Of the processor, beyond importing; a file that is walked to its stated end takes hours."""
MEMORY = 200 * 10**6
# Runs `tessera plan` of each file; prints the exit code, seconds and bytes beyond importing, and what was said.
PROGRAM = """
import contextlib, io, json, resource, sys, time
from tessera.cli.program import run
import tessera.cli.plan, tessera.gguf.model

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)

before = peak()
for path in json.loads(sys.argv[1]):
    said, began = io.StringIO(), time.process_time()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
        code = run(["plan", path, "--platform", "a.module:Platform"])
    print(json.dumps([code, time.process_time() - began, peak() - before, said.getvalue()]), flush=True)
"""


def test_each_is_refused_in_one_line_soon(tmp_path: Path) -> None:
    paths = []
    for number, (content, _) in enumerate(FILES.values()):
        paths.append(tmp_path / f"{number}.gguf")
        paths[-1].write_bytes(content() if callable(content) else content)
    command = [sys.executable, "-c", PROGRAM, json.dumps([*map(str, paths)])]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    results = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(results) == len(FILES) > 40
    for kind, path, (code, seconds, nbytes, said) in zip(FILES, paths, results, strict=True):
        assert (code, said.count("\n")) == (ModelError.exit_code, 1), (kind, said)
        assert said.startswith("error: '"), (kind, said)
        assert f"{path.name}' " in said, (kind, said)
        assert seconds < SECONDS, kind
        assert nbytes < MEMORY, kind


@pytest.mark.parametrize("kind", ["10^9 keys", "a text of 2^63 bytes"])
def test_a_server_ends_with_the_same_line(tmp_path: Path, kind: str) -> None:
    content, message = FILES[kind]
    assert isinstance(content, bytes)
    (tmp_path / "model.gguf").write_bytes(content)
    done = subprocess.run(
        [sys.executable, "-m", "tessera.cli", "serve", str(tmp_path / "model.gguf"), "--port", "0"],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == ModelError.exit_code
    (line,) = [line for line in done.stderr.splitlines() if not ("engine process" in line or line.endswith(" ..."))]
    assert line.startswith("error: ")
    assert line.endswith(message)
