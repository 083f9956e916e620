"""Runs clients and agents that people use, unmodified, against a server whose model is scripted: `python -m
tools.clients`. They are installed into build/clients, in the versions of constraints.txt beside this file; the server
is this tree's. Names choose some of them."""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path

from tools.clients.contracts import CONTRACTS
from tools.clients.programs import PROGRAMS
from tools.local_server import ROOT, free_port, started

HERE = Path(__file__).parent
ENVIRONMENT = ROOT / "build/clients"
SCRIPTED = ("-m", "tools.clients.scripted")
PROGRAM_SECONDS = 300.0
STANDARD = "langchain_standard"
TESTS = [
    "-m", "pytest", "-q", "-c", os.devnull, "--rootdir", str(HERE), "-p", "no:cacheprovider", "-o", "asyncio_mode=auto",
    str(HERE / f"{STANDARD}.py"),
]  # fmt: skip
PACKAGES = (
    "instructor", "litellm", "langchain-openai", "langchain-anthropic", "langchain-tests", "openai-agents",
    "pydantic-ai-slim[openai]", "llama-index-llms-openai-like", "http-snapshot", "inline-snapshot", "respx",
)  # fmt: skip


def installed() -> Path:
    """The clients' Python. Raises CalledProcessError."""
    python = ENVIRONMENT / "bin/python"
    done = ENVIRONMENT / "installed"
    wanted = (HERE / "constraints.txt").read_text(encoding="utf-8")
    if not done.exists() or done.read_text(encoding="utf-8") != wanted:
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(ENVIRONMENT)], check=True)
        # Most of what is installed is never imported, and Python compiles what is.
        pip = [str(python), "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-compile"]
        subprocess.run([*pip, "-c", str(HERE / "constraints.txt"), *PACKAGES], check=True)
        done.write_text(wanted, encoding="utf-8")
    return python


def run(name: str, python: Path, base: str) -> subprocess.CompletedProcess[str]:
    """Raises CalledProcessError, TimeoutExpired."""
    environment = {
        **os.environ, "OPENAI_API_KEY": "any", "OPENAI_BASE_URL": f"{base}/v1", "ANTHROPIC_API_KEY": "any",
        "ANTHROPIC_BASE_URL": base, "OPENAI_AGENTS_DISABLE_TRACING": "1", "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    }  # fmt: skip
    environment.pop("PYTHONPATH", None)
    command, folder = [str(HERE / "programs.py"), name, base], ROOT
    if name == STANDARD:
        command = TESTS
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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    known = [*PROGRAMS, STANDARD, *CONTRACTS]
    parser.add_argument("names", nargs="*", default=known, help=f"some of {', '.join(known)}")
    asked = parser.parse_args()
    python, port = installed(), free_port()
    base = f"http://127.0.0.1:{port}"
    wrong = []
    with started((*SCRIPTED, str(port)), port):
        for name in asked.names:
            done = run(name, python, base)
            print(f"{'ok   ' if done.returncode == 0 else 'wrong'} {name}{_counted(name, done.stdout)}", flush=True)
            if done.returncode:
                wrong.append(name)
                print("\n".join((done.stdout + done.stderr).splitlines()[-25:]), flush=True)
    print(f"{len(asked.names) - len(wrong)} of {len(asked.names)} clients work")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
