"""Tessera beside a hub of its own, in processes whose surroundings a test chooses: huggingface_hub reads them once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.hub.stand_in import StandIn, running

ROOT = Path(__file__).parents[3]
CONFIG = {"architectures": ["LlamaForCausalLM"], "vocab_size": 1000, "max_position_embeddings": 2048, "eos_token_id": 2}
FILES = {
    "config.json": json.dumps(CONFIG).encode(),
    "generation_config.json": b'{"eos_token_id": 5}',
    "tokenizer.json": b'{"added_tokens": []}',
    "tokenizer_config.json": b"{}",
    "chat_template.jinja": b"{{ messages }}",
    "additional_chat_templates/tools.jinja": b"{{ tools }}",
    "model.safetensors": bytes(range(256)) * 400,
    "consolidated.safetensors": b"never",
    "pytorch_model.bin": b"never",
    "model-q4.gguf": b"never",
    "original/model.safetensors": b"never",
    "modeling_own.py": b"never",
    "README.md": b"never",
}
WEIGHTS = len(FILES["model.safetensors"])

# Builds a configuration for each call that it is given and prints what came of it.
PROGRAM = """
import json, logging, sys
from tessera.config import build_config
from tessera.errors import TesseraError
logging.basicConfig(level=logging.WARNING)
for call in json.loads(sys.argv[1]):
    try:
        model = build_config(**{"platform": "a.module:Platform", **call}).model
        answer = {"path": model.path, "tokenizer": model.tokenizer, "name": model.served_name}
        answer["library"] = "huggingface_hub" in sys.modules
    except TesseraError as error:
        answer = {"error": error.message, "kind": type(error).__name__}
    print(json.dumps(answer), flush=True)
"""


@pytest.fixture
def hub() -> Iterator[StandIn]:
    with running() as hub:
        hub.add("org/tiny", FILES)
        yield hub


class Asked:
    """What came of some calls: answers, one a call; log: of the process that made them."""

    def __init__(self, answers: list[dict[str, str]], log: str) -> None:
        self.answers, self.log = answers, log


class Site:
    """A machine with an empty cache. variables: of the processes on it."""

    def __init__(self, hub: StandIn, folder: Path) -> None:
        self.hub, self.cache = hub, folder / "hub"
        kept = {name: value for name, value in os.environ.items() if not _foreign(name)}
        path = os.pathsep.join([str(ROOT), str(ROOT / "core")])
        self.variables = {**kept, "PYTHONPATH": path, "HF_ENDPOINT": hub.url, "HF_HOME": str(folder)}

    def start(self, *calls: dict[str, Any], **variables: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", PROGRAM, json.dumps(calls)]
        return subprocess.Popen(
            command, env={**self.variables, **variables}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def ask(self, *calls: dict[str, Any], **variables: str) -> Asked:
        with self.start(*calls, **variables) as process:
            output, log = process.communicate(timeout=120)
        assert process.returncode == 0, log
        answers = [json.loads(line) for line in output.splitlines()]
        assert not any("\n" in answer.get("error", "") for answer in answers)
        return Asked(answers, log)


@pytest.fixture
def site(hub: StandIn, tmp_path: Path) -> Site:
    return Site(hub, tmp_path / "home")


def _foreign(name: str) -> bool:
    return name.startswith(("HF_", "TESSERA_")) or name.lower().endswith("_proxy")
