"""Runs clients and agents that people use, unmodified, against a server whose model is scripted: `python -m
tools.clients`. Those that embed have a server of their own, whose model is tiny and random. They are installed into
build/clients, in the versions of constraints.txt beside this file; the servers are this tree's. Names choose some of
them."""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tools.clients import embedding_programs
from tools.clients.contracts import CONTRACTS
from tools.clients.embedder import write_embedder
from tools.clients.programs import PROGRAMS
from tools.local_server import ROOT, TESSERA, free_port, started
from tools.own_environment import own_environment

HERE = Path(__file__).parent
ENVIRONMENT = ROOT / "build/clients"
SCRIPTED = ("-m", "tools.clients.scripted")
PROGRAM_SECONDS = 300.0
STANDARD = "langchain_standard"
EMBEDDING_STANDARD = "langchain_embeddings_standard"
EMBEDDING_NAMES = (*embedding_programs.PROGRAMS, EMBEDDING_STANDARD)
"""The clients of the server that embeds."""
TESTS = (
    "-m", "pytest", "-q", "-c", os.devnull, "--rootdir", str(HERE), "-p", "no:cacheprovider", "-o", "asyncio_mode=auto",
)  # fmt: skip
PACKAGES = (
    "instructor", "litellm", "langchain-openai", "langchain-anthropic", "langchain-tests", "openai-agents",
    "pydantic-ai-slim[openai]", "llama-index-llms-openai-like", "llama-index-embeddings-openai", "cohere",
    "http-snapshot", "inline-snapshot", "respx",
)  # fmt: skip


def installed() -> Path:
    """The clients' Python. Raises CalledProcessError."""
    return own_environment(ENVIRONMENT, (HERE / "constraints.txt",), (PACKAGES,))


def run(name: str, python: Path, base: str) -> subprocess.CompletedProcess[str]:
    """Raises CalledProcessError, TimeoutExpired."""
    environment = {
        **os.environ, "OPENAI_API_KEY": "any", "OPENAI_BASE_URL": f"{base}/v1", "ANTHROPIC_API_KEY": "any",
        "ANTHROPIC_BASE_URL": base, "OPENAI_AGENTS_DISABLE_TRACING": "1", "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    }  # fmt: skip
    environment.pop("PYTHONPATH", None)
    file = "embedding_programs.py" if name in EMBEDDING_NAMES else "programs.py"
    command, folder = [str(HERE / file), name, base], ROOT
    if name in (STANDARD, EMBEDDING_STANDARD):
        command = [*TESTS, str(HERE / f"{name}.py")]
    elif name in CONTRACTS:
        contract = CONTRACTS[name]
        command, folder = contract.command(), contract.source(python)
        environment |= contract.environment(base)
    return subprocess.run(
        [str(python), *command], cwd=folder, env=environment, capture_output=True, text=True, timeout=PROGRAM_SECONDS,
        check=False,
    )  # fmt: skip


def _counted(name: str, output: str) -> str:
    """What pytest counted, if the output is pytest's."""
    found = re.search(r"\d+ passed[^\n]*", output)
    if found is None:
        return ""
    return f": {CONTRACTS[name].counted(found[0]) if name in CONTRACTS else found[0].strip('= ')}"


@contextmanager
def embedding_server(port: int) -> Iterator[None]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_embedder(folder)
        command = (*TESSERA, name, "--port", str(port), "--served-model-name", embedding_programs.MODEL)
        with (folder / "log").open("wb") as log, started((*command, "--dtype", "float32"), port, log=log):
            yield


def failures(names: Iterable[str], python: Path, base: str) -> int:
    """How many of the clients do not work. Prints what each did."""
    wrong = 0
    for name in names:
        done = run(name, python, base)
        print(f"{'ok   ' if done.returncode == 0 else 'wrong'} {name}{_counted(name, done.stdout)}", flush=True)
        if done.returncode:
            wrong += 1
            print("\n".join((done.stdout + done.stderr).splitlines()[-25:]), flush=True)
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    known = [*PROGRAMS, STANDARD, *CONTRACTS, *EMBEDDING_NAMES]
    parser.add_argument("names", nargs="*", default=known, help=f"some of {', '.join(known)}")
    names = parser.parse_args().names
    python, wrong = installed(), 0
    if others := [name for name in names if name not in EMBEDDING_NAMES]:
        port = free_port()
        with started((*SCRIPTED, str(port)), port):
            wrong += failures(others, python, f"http://127.0.0.1:{port}")
    if embedding := [name for name in names if name in EMBEDDING_NAMES]:
        port = free_port()
        with embedding_server(port):
            wrong += failures(embedding, python, f"http://127.0.0.1:{port}")
    print(f"{len(names) - wrong} of {len(names)} clients work")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
