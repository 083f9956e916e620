"""A platform as its user meets it: `tessera platforms` on a machine that has such a device, and a server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tessera.platform import API_LEVELS
from tests.e2e.served import Served
from tests.platforms.engine_run import EngineRun

ROOT = Path(__file__).parents[2]
TOKENS, SEED = 8, 7
TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}"
"""Of chats: tiny models have none."""


def is_chosen(
    name: str,
    files: Mapping[str, str | Path],
    folder: Path,
    environment: Mapping[str, str],
    *,
    devices: Sequence[str | tuple[str, int]],
    reason: str,
    score: int = 100,
    vendor: tuple[str, str] | None = None,
) -> None:
    """`tessera platforms --json` finds the devices of a machine, and chooses the platform.

    files: of the machine, by their path, with their text; a Path is where a link leads to. environment: with a
    PYTHONPATH on which the package and what stands in for the vendor's modules are. devices: names, or names and bytes
    of memory. vendor: a distribution of the vendor's that is installed, and its version.
    """
    project = tomllib.loads((ROOT / f"platforms/{name}/pyproject.toml").read_text(encoding="utf-8"))["project"]
    machine, site = folder / "machine", folder / "site"
    for path, text in files.items():
        file = machine / path
        file.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(text, Path):
            (machine / text).mkdir(parents=True, exist_ok=True)
            file.symlink_to(machine / text)
        else:
            file.write_text(text, encoding="utf-8")
    entries = "".join(f"{key} = {value}\n" for key, value in project["entry-points"]["tessera"].items())
    _install(site, project["name"], project["version"], entries, project["dependencies"])
    if vendor is not None:
        _install(site, *vendor)
    # Each Python imports it as it starts, the one that probes too: only where the files are is another place.
    probe = f"from tessera_{name} import probe\n"
    looks = f"probe.probe.__defaults__ = (__import__('pathlib').Path({str(machine)!r}),)\n" if files else ""
    (site / "sitecustomize.py").write_text(probe + looks, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "tessera.cli", "platforms", "--json"],
        env={**os.environ, **environment, "PYTHONPATH": f"{site}{os.pathsep}{environment['PYTHONPATH']}"},
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    rows = json.loads(done.stdout)
    found = [one if isinstance(one, tuple) else (one, 0) for one in devices]
    assert next(row for row in rows if row["name"] == name) == {
        "name": name,
        "distribution": project["name"],
        "version": project["version"],
        "api_levels": dict.fromkeys(API_LEVELS, 0),
        "shims": [],
        "score": score,
        "reason": reason,
        "devices": [{"name": one, "index": index, "memory": memory} for index, (one, memory) in enumerate(found)],
        "selected": True,
        "verdict": "chosen: the highest score",
        "error": None,
    }
    assert [row["name"] for row in rows if row["selected"]] == [name]


def _install(site: Path, name: str, version: str, entries: str = "", needs: Sequence[str] = ()) -> None:
    """What pip leaves of a distribution whose modules are elsewhere."""
    folder = site / f"{name.replace('-', '_')}-{version}.dist-info"
    folder.mkdir(parents=True)
    lines = [f"Name: {name}", f"Version: {version}", *(f"Requires-Dist: {need}" for need in needs)]
    (folder / "METADATA").write_text("Metadata-Version: 2.1\n" + "\n".join(lines) + "\n", encoding="utf-8")
    if entries:
        (folder / "entry_points.txt").write_text(f"[tessera]\n{entries}", encoding="utf-8")


def serves_as_the_reference(
    name: str,
    platform: str,
    model: Path,
    folder: Path,
    environment: Mapping[str, str],
    *flags: str,
    dtype: str = "float32",
) -> None:
    """The tokens of a greedy chat, streamed, and of two completions that are sampled. name: of the platform, as the
    server says it. flags: more of the server's."""
    log, template = folder / "log", folder / "chat.jinja"
    template.write_text(TEMPLATE, encoding="utf-8")
    given = ["--platform", platform, "--dtype", dtype, "--chat-template", str(template), "--served-model-name", "tiny"]
    limits = ["--kv-cache-memory-bytes", str(4 << 20), "--max-num-seqs", "4"]
    arguments = [str(model), *given, *limits, *flags]
    with Served(arguments, log, environment={**os.environ, **environment}, ready_within=180.0) as server:
        chat = {"messages": [{"role": "user", "content": "ab cd"}], "temperature": 0, "stream": True}
        streamed = _ask(server, "chat/completions", **chat).splitlines()
        sampled = json.loads(_ask(server, "completions", prompt=["ab cd", "xyz"], temperature=1.0))["choices"]
    assert f"(platform {name})" in log.read_text(encoding="utf-8")
    chunks = [json.loads(line.removeprefix("data: ")) for line in streamed if "{" in line]
    prompt = next(chunk["prompt_token_ids"] for chunk in chunks if "prompt_token_ids" in chunk)
    said = [token for chunk in chunks for choice in chunk["choices"] for token in choice.get("token_ids") or []]
    with EngineRun(model, "reference", dtype=dtype) as reference:
        asked = {"max_tokens": TOKENS, "seed": SEED, "ignore_eos": True}
        assert [said] == reference.ask([prompt], **asked)
        prompts = [choice["prompt_token_ids"] for choice in sampled]
        assert [choice["token_ids"] for choice in sampled] == reference.ask(prompts, **asked, temperature=1.0)


def _ask(server: Served, route: str, **asked: Any) -> str:
    fixed = {"model": "tiny", "max_tokens": TOKENS, "seed": SEED, "ignore_eos": True, "return_token_ids": True}
    body = json.dumps({**fixed, **asked}).encode()
    request = urllib.request.Request(f"{server.url}/v1/{route}", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as answer:
        return str(answer.read().decode())
