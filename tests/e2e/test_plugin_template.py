"""A generated package of each depth, from nothing: installed, found, bronze, checked, typed, and served."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.e2e.served import Served

ROOT = Path(__file__).parents[2]
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]


class Made(NamedTuple):
    """name: of the platform. folder: of its package. environment: in which it is installed."""

    name: str
    folder: Path
    environment: dict[str, str]

    def tessera(self, *arguments: str) -> str:
        return said([sys.executable, "-m", "tessera.cli", *arguments], self.environment)


def said(command: list[str], environment: dict[str, str], folder: Path = ROOT) -> str:
    """What it prints. It must end well."""
    done = subprocess.run(
        command, env=environment, cwd=folder, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module", params=["op", "runner"])
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Made:
    depth, place = request.param, tmp_path_factory.mktemp("plugin")
    name, site = f"my{depth}", place / "site"
    path = [str(site), str(ROOT / "core"), str(ROOT / "platforms" / "cpu")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path), "OMP_NUM_THREADS": "1"}
    device = ["--device", "cpu"] if depth == "op" else []
    new = ["plugin", "new", name, "--depth", depth, *device, "--into", str(place), "--yes"]
    said([sys.executable, "-m", "tessera.cli", *new], environment)
    folder = place / f"tessera-{name}"
    install = ["-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--target"]
    said([sys.executable, *install, str(site), str(folder)], environment)
    return Made(name, folder, environment)


def test_it_is_found(made: Made) -> None:
    rows = {row["name"]: row for row in json.loads(made.tessera("platforms", "--json"))}
    assert (rows[made.name]["score"], rows[made.name]["error"]) == (5, None)


def test_it_is_bronze_before_a_kernel_is_written(made: Made, tmp_path: Path) -> None:
    kit = tmp_path / "kit.json"
    made.tessera("conformance", "--platform", made.name, "--level", "bronze", "--json", str(kit))
    found = json.loads(kit.read_text(encoding="utf-8"))
    assert found["reached"] == "bronze"
    status = {case["id"]: case["status"] for case in found["cases"]}
    assert status["device/manifest"] == status["model/llama-float32"] == "passed"
    ops = {status[name] for name in status if name.startswith("op/")}
    assert "passed" not in ops, "nothing is claimed that is not written"
    assert ("n/a" in ops, "falls back" in ops) == ((True, False) if made.name == "myrunner" else (True, True))


def test_it_breaks_nothing(made: Made) -> None:
    assert made.tessera("plugin", "check", str(made.folder)).startswith("no findings in ")
    ruff = str(Path(sys.executable).parent / "ruff")
    said([ruff, "check", "."], made.environment, made.folder)
    said([ruff, "format", "--check", "."], made.environment, made.folder)
    # By this tree's settings, which are strict and whose cache knows torch.
    package = str(made.folder / f"tessera_{made.name}")
    typed = {**made.environment, "MYPYPATH": str(made.folder)}
    said([sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml"), package], typed)


def test_it_serves_a_chat(made: Made, tmp_path: Path) -> None:
    with Served(["--platform", made.name], tmp_path / "log", environment=made.environment) as server:
        with urllib.request.urlopen(f"{server.url}/v1/models", timeout=60) as answer:
            model = json.loads(answer.read())["data"][0]["id"]
        body = json.dumps({"model": model, "messages": QUESTION, "max_tokens": 24, "temperature": 0}).encode()
        request = urllib.request.Request(
            f"{server.url}/v1/chat/completions", body, {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            told = json.loads(answer.read())
    assert "Paris" in told["choices"][0]["message"]["content"]
