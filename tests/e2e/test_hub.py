"""A model of the hub, served and used offline, by its name alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from tests.e2e.served import Served
from tests.hub.stand_in import StandIn, running
from tests.models.tiny import write_tiny_model

PLATFORM = "tessera_cpu.platform:CpuPlatform"
PROGRAM = """
from tessera import LLM, SamplingParams
with LLM("org/tiny", revision="main", dtype="float32", platform=%r) as llm:
    print(llm.generate("ab cd", SamplingParams(temperature=0, max_tokens=8), use_tqdm=False)[0].outputs[0].text)
"""


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandIn]:
    folder = write_tiny_model(tmp_path_factory.mktemp("model"))
    with running() as hub:
        hub.add("org/tiny", {path.name: path.read_bytes() for path in folder.iterdir()})
        yield hub


def surroundings(hub: StandIn, folder: Path) -> dict[str, str]:
    """An environment whose hub is this one, with an empty cache."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    return {**plain, "HF_ENDPOINT": hub.url, "HF_HOME": str(folder / "home")}


def test_a_plan_needs_no_weights(hub: StandIn, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tessera.cli", "plan", "org/tiny", "--json", "--platform", PLATFORM]
    environment = surroundings(hub, tmp_path)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    (planned,) = json.loads(done.stdout)
    stored = len(
        hub.repositories["org/tiny"].files[hub.repositories["org/tiny"].revisions["main"]]["model.safetensors"]
    )
    assert 0.4 * stored < planned["weight_bytes"] < 0.6 * stored  # bfloat16 for float32
    assert planned["requests"]["256"] > 0
    assert not hub.sent["model.safetensors"]
    assert not hub.sent["tokenizer.json"]


def test_a_repository_is_served_and_then_is_there_without_a_hub(hub: StandIn, tmp_path: Path) -> None:
    environment = surroundings(hub, tmp_path)
    arguments = ["org/tiny", "--dtype", "float32", "--platform", PLATFORM]
    with Served(arguments, tmp_path / "log", environment=environment) as served:
        with openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as client:
            assert [model.id for model in client.models.list().data] == ["org/tiny"]
            ask = {"model": "org/tiny", "prompt": "ab cd", "max_tokens": 8, "temperature": 0}
            text = client.completions.create(**ask).choices[0].text
        assert "fetching model.safetensors of org/tiny (" in served.log.read_text()

    hub.requests.clear()
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM % PLATFORM],
        env={**environment, "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout.removesuffix("\n") == text, done.stderr
    assert not hub.requests
