"""Serves the demo model on a Python for aarch64 with torch, run by an emulator: a chat's tokens must be those of the
reference platform on this machine. Then the conformance kit runs there at bronze. That Python is made in build/aarch64
from what Debian and the package index have."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from http.client import HTTPConnection

from tools.aarch64.environment import UnavailableError, make
from tools.local_server import LIMITED, ROOT, TESSERA, free_port, started

SECONDS = 600
"""An emulated server may take so long to start, and for an answer."""
FLAGS = (*LIMITED, "--served-model-name", "demo", "--stall-timeout", str(SECONDS))
REFERENCE = ("--platform", "tessera.testing:ReferencePlatform")
REQUEST = {
    "model": "demo",
    "messages": [{"role": "user", "content": "What is the capital of France?"}],
    "max_tokens": 24,
    "temperature": 0,
    "logprobs": True,
}


def main() -> int:
    try:
        program = str(make())
        subprocess.run([program, "-m", "tessera.cli", "platforms"], env=variables(), check=True)
        expected = tokens(sys.executable, REFERENCE)
        found = tokens(program)
    except (UnavailableError, OSError, RuntimeError, subprocess.CalledProcessError) as error:
        print(error)
        return 1
    print(f"the demo model says {''.join(found)!r}", flush=True)
    if found != expected:
        print(f"but on this machine's reference platform {''.join(expected)!r}")
        return 1
    conformance = [program, "-m", "tessera.cli", "conformance", "--platform", "cpu", "--level", "bronze"]
    return subprocess.run(conformance, cwd=ROOT, env=variables(), check=False).returncode


def tokens(python: str, flags: Sequence[str] = ()) -> list[str]:
    """What the demo model answers, served by this Python."""
    port = free_port()
    arguments = [*TESSERA, "--port", str(port), *FLAGS, *flags]
    with started(arguments, port, python=python, environment=variables(), seconds=SECONDS):
        connection = HTTPConnection("127.0.0.1", port, timeout=SECONDS)
        connection.request("POST", "/v1/chat/completions", json.dumps(REQUEST), {"Content-Type": "application/json"})
        answer = json.loads(connection.getresponse().read())
        return [one["token"] for one in answer["choices"][0]["logprobs"]["content"]]


def variables() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1"}


if __name__ == "__main__":
    sys.exit(main())
