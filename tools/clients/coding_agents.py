"""Runs Codex and Claude Code, unmodified and without an account, against the scripted server: `python -m
tools.clients.coding_agents`. npm installs them into build/agents, in the versions of package-lock.json beside this
file. `--record` writes what they ask to tests/server/recorded."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tools.clients.__main__ import SCRIPTED
from tools.clients.recording import fixture, written
from tools.clients.scripted import CALL_REQUEST, SUNNY
from tools.local_server import ROOT, free_port, started

HERE = Path(__file__).parent
INSTALLED = ROOT / "build/agents"
MODULES = INSTALLED / "node_modules"
FIXTURES = ROOT / "tests/server/recorded"
SECONDS = 60.0
MODEL = "scripted"
NOTE = "hello\n"
CODEX = f"""
model = "{MODEL}"
model_provider = "tessera"
check_for_update_on_startup = false

[model_providers.tessera]
name = "Tessera"
base_url = "BASE/v1"
wire_api = "responses"

[analytics]
enabled = false
"""


@dataclass(frozen=True)
class Job:
    """What is run in an empty folder. prompt: asks for a note there. environment: besides PATH and HOME."""

    command: list[str]
    prompt: str
    environment: dict[str, str]


def codex(base: str, home: Path, _work: Path) -> Job:
    (home / "config.toml").write_text(CODEX.replace("BASE", base), encoding="utf-8")
    write, close = {"cmd": f"printf '{NOTE}' > note.txt"}, {"target": "nobody"}
    # Its sandbox needs rights that a container lacks; what it runs is what the prompt below says, in an empty folder.
    options = ("--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox")
    return Job(
        ["node", str(MODULES / "@openai/codex/bin/codex.js"), "exec", *options],
        f"Call exec_command with {json.dumps(write)}. Call multi_agent_v1__close_agent with {json.dumps(close)}.",
        {"CODEX_HOME": str(home)},
    )


def claude_code(base: str, _home: Path, work: Path) -> Job:
    return Job(
        ["node", str(MODULES / "@anthropic-ai/claude-code/cli-wrapper.cjs"), "--allowedTools=Write", "--print"],
        f"Call Write with {json.dumps({'file_path': str(work / 'note.txt'), 'content': NOTE})}.",
        {
            "ANTHROPIC_BASE_URL": base, "ANTHROPIC_AUTH_TOKEN": "any", "ANTHROPIC_MODEL": MODEL,
            "ANTHROPIC_DEFAULT_HAIKU_MODEL": MODEL, "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        },
    )  # fmt: skip


AGENTS: Mapping[str, tuple[str, Callable[[str, Path, Path], Job]]] = {
    "codex": ("@openai/codex", codex),
    "claude_code": ("@anthropic-ai/claude-code", claude_code),
}
"""Each agent's package of npm, and what is run of it for the address of a server."""


def install() -> None:
    """Raises CalledProcessError."""
    lock = HERE / "package-lock.json"
    done = INSTALLED / "installed.json"
    if done.exists() and done.read_bytes() == lock.read_bytes():
        return
    INSTALLED.mkdir(parents=True, exist_ok=True)
    for name in ("package.json", lock.name):
        shutil.copy(HERE / name, INSTALLED / name)
    options = ("--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error")
    subprocess.run(["npm", "ci", *options], cwd=INSTALLED, check=True)
    shutil.copy(lock, done)


def run(name: str, base: str, home: Path, work: Path) -> tuple[Job, str]:
    """Also returns what is wrong; "" if nothing is."""
    job = AGENTS[name][1](base, home, work)
    done = subprocess.run(
        [*job.command, job.prompt], cwd=work, env={"PATH": os.environ["PATH"], "HOME": str(home), **job.environment},
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=SECONDS, check=False,
    )  # fmt: skip
    note = work / "note.txt"
    right = done.returncode == 0 and done.stdout.strip().endswith(SUNNY)
    if right and note.exists() and note.read_text(encoding="utf-8") == NOTE:
        return job, ""
    return job, "\n".join((done.stdout + done.stderr).splitlines()[-25:]) or "It said nothing, and left no note."


def record(name: str, job: Job, requests: Path, home: Path, work: Path) -> None:
    package = AGENTS[name][0]
    version = json.loads((MODULES / package / "package.json").read_text(encoding="utf-8"))["version"]
    about = {"client": f"{package} {version}", "source": "python -m tools.clients.coding_agents --record"}
    calls = [{"name": called, "arguments": json.loads(text)} for called, text in CALL_REQUEST.findall(job.prompt)]
    found = fixture(requests, about, [*calls, SUNNY], (job.prompt, str(work / "note.txt")))
    text = written(found, {str(home): "/settings", str(work): "/folder"})
    (FIXTURES / f"{name}.json").write_text(text, encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=[*AGENTS], help=f"some of {', '.join(AGENTS)}")
    parser.add_argument("--record", action="store_true", help="write what they ask to tests/server/recorded")
    asked = parser.parse_args()
    if not shutil.which("npm"):
        sys.exit("npm and node are needed to install and run the agents.")
    install()
    wrong = 0
    for name in asked.names:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            home, work, requests = (Path(folder).resolve() / part for part in ("home", "work", "requests"))
            for each in (home, work, requests):
                each.mkdir()
            port = free_port()
            with started((*SCRIPTED, str(port), str(requests)), port):
                job, why = run(name, f"http://127.0.0.1:{port}", home, work)
            print(f"{'wrong' if why else 'ok   '} {name}{why and chr(10)}{why}", flush=True)
            wrong += bool(why)
            if asked.record and not why:
                record(name, job, requests, home, work)
    print(f"{len(asked.names) - wrong} of {len(asked.names)} agents work")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
