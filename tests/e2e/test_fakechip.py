"""A vendor's package as its user has it: installed by pip, found by its entry point, tried by the kit, served."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import openai
import pytest

from tests.e2e.served import Served
from tests.models.tiny import write_tiny_model

pytestmark = pytest.mark.compiler
ROOT = Path(__file__).parents[2]
PLUGIN, CHIP = ROOT / "tests/fakechip", ROOT / "tests/torch_fakechip"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of who has it; the compiled device is that of the clone."""
    site = tmp_path_factory.mktemp("site")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "install", "--quiet"]
    subprocess.run(
        [*pip, "--no-deps", "--no-index", "--no-build-isolation", "--target", str(site), str(PLUGIN), str(CHIP)],
        check=True,
    )
    path = os.pathsep.join([str(site), str(ROOT / "core"), str(ROOT / "platforms/cpu"), str(ROOT)])
    environment = {**os.environ, "PYTHONPATH": path, "TORCH_FAKECHIP_BUILD": str(CHIP / ".build")}
    # A probe has no time for a compiler.
    subprocess.run([sys.executable, "-c", "import torch_fakechip"], env=environment, check=True)
    return environment


def tessera(installed: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tessera.cli", *arguments]
    return subprocess.run(command, env=installed, capture_output=True, text=True, timeout=200, check=False)


def test_it_is_found_and_chosen(installed: dict[str, str]) -> None:
    rows = {row["name"]: row for row in json.loads(tessera(installed, "platforms", "--json").stdout)}
    found = {name: row["score"] for name, row in rows.items() if name.startswith("fakechip")}
    assert found == {"fakechip": 100, "fakechip-static": 80, "fakechip-bronze": 50}
    assert rows["fakechip"]["selected"]
    assert [device["index"] for device in rows["fakechip"]["devices"]] == [0, 1]


def test_the_kit_tries_it_by_its_name(installed: dict[str, str]) -> None:
    done = tessera(installed, "conformance", "--platform", "fakechip", "--case", "device")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.nightly
@pytest.mark.parametrize("platform", ["fakechip-bronze", "fakechip", "fakechip-static"])
def test_the_whole_kit_passes(installed: dict[str, str], platform: str, tmp_path: Path) -> None:
    done = tessera(installed, "conformance", "--platform", platform, "--json", str(tmp_path / "kit.json"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads((tmp_path / "kit.json").read_text())["reached"] == "silver"


def answers(environment: dict[str, str], platform: str, folder: Path) -> list[str]:
    """Greedy and seeded, of a server of its own."""
    model = write_tiny_model(folder / "model")
    flags = [str(model), "--platform", platform, "--dtype", "float32", "--kv-cache-memory-bytes", str(4 << 20)]
    with (
        Served(flags, folder / "log", environment=environment) as server,
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client,
    ):
        ask = {"model": client.models.list().data[0].id, "prompt": ["ab cd", "xyz"], "max_tokens": 16, "seed": 7}
        asked = [client.completions.create(**ask, temperature=warmth).choices for warmth in (0.0, 1.0)]
        streamed = client.completions.create(**{**ask, "prompt": "ab cd"}, temperature=0, stream=True)
        assert "".join(chunk.choices[0].text for chunk in streamed) == asked[0][0].text
    return [choice.text for choices in asked for choice in choices]


@pytest.fixture(scope="module")
def expected(installed: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return answers(installed, "tessera.testing:ReferencePlatform", tmp_path_factory.mktemp("reference"))


@pytest.mark.parametrize("platform", ["fakechip", pytest.param("fakechip-static", marks=pytest.mark.nightly)])
def test_it_serves(installed: dict[str, str], expected: list[str], platform: str, tmp_path: Path) -> None:
    assert answers(installed, platform, tmp_path) == expected
