"""Adapters over HTTP, as a user starts the server and OpenAI's client asks."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest
from safetensors.torch import load_file, save_file

from tessera.config.locate import demo_folder
from tessera.config.lora import WEIGHTS
from tessera.testing.conformance.lora import save_adapter
from tests.e2e.served import Served

NAMES = ["tessera-demo", "first", "second"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("adapters")
    return [save_adapter(demo_folder(), folder / name, seed=seed) for seed, name in enumerate(NAMES[1:])]


@pytest.fixture(scope="module")
def api(folders: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[openai.OpenAI]:
    modules = [
        "--lora-modules",
        f"first={folders[0]}",
        "--lora-modules",
        f'{{"name": "second", "path": "{folders[1]}"}}',
    ]
    keys = tmp_path_factory.mktemp("keys") / "keys.yaml"
    keys.write_text("keys: [{name: operator, key: none, admin: true}]")
    arguments = ["--enable-lora", "--max-loras", "1", *modules, "--api-key-file", str(keys)]
    with (
        Served(arguments, tmp_path_factory.mktemp("log") / "log") as served,
        openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as client,
    ):
        yield client


def test_each_adapter_is_a_model(api: openai.OpenAI) -> None:
    assert [(model.id, model.parent) for model in api.models.list()] == [
        (name, None if name == NAMES[0] else NAMES[0]) for name in NAMES
    ]
    completed = [
        api.completions.create(model=name, prompt="Once", temperature=0, max_tokens=16).choices[0].text
        for name in NAMES * 2
    ]
    assert len(set(completed[:3])) == 3
    assert completed[3:] == completed[:3]
    chats = [
        api.chat.completions.create(
            model=name, messages=[{"role": "user", "content": "Who are you?"}], temperature=0, max_tokens=16
        )
        for name in NAMES
    ]
    assert [chat.model for chat in chats] == NAMES
    assert len({chat.choices[0].message.content for chat in chats}) == 3


def test_an_adapter_that_comes_while_the_server_runs_answers_as_one_that_was_there(
    api: openai.OpenAI, folders: list[Path], tmp_path: Path
) -> None:
    def change(route: str, **fields: str) -> str:
        return api.post(f"/{route}", body=fields, cast_to=str)

    def text(model: str) -> str:
        return api.completions.create(model=model, prompt="Once", temperature=0, max_tokens=16).choices[0].text

    copy = shutil.copytree(folders[1], tmp_path / "copy")
    assert "'late' added" in change("load_lora_adapter", lora_name="late", lora_path=str(copy))
    shutil.rmtree(copy)
    assert [text("late"), text("first"), text("late")] == [text("second"), text("first"), text("second")]
    strange = save_adapter(demo_folder(), tmp_path / "strange", seed=3)
    weights = load_file(strange / WEIGHTS)
    save_file({name.replace("layers.0.", "layers.99."): value for name, value in weights.items()}, strange / WEIGHTS)
    with pytest.raises(openai.BadRequestError, match=r"'strange' cannot be used: it changes 'model\.layers\.99\."):
        change("load_lora_adapter", lora_name="strange", lora_path=str(strange))
    assert "'late' removed" in change("unload_lora_adapter", lora_name="late")
    with pytest.raises(openai.NotFoundError):
        text("late")
    assert [model.id for model in api.models.list()] == NAMES


def test_a_wrong_name_is_a_404(api: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        api.completions.create(model="third", prompt="Once")
    assert missing.value.code == "model_not_found"


def test_an_adapter_that_cannot_be_served_ends_the_start_with_one_line(folders: list[Path]) -> None:
    command = [sys.executable, "-m", "tessera.cli", "serve", "--enable-lora", "--max-lora-rank", "2", "--port", "0"]
    done = subprocess.run(
        [*command, "--lora-modules", f"first={folders[0]}"], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 3
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    assert "has rank 4, but --max-lora-rank is 2; raise it to 4." in errors[0]
