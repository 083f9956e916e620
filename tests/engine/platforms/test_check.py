"""What Platform.check finds ends a start before any weight is read."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tessera.config import build_config
from tessera.engine.plan import plan_here
from tessera.errors import RefusedError
from tessera.loader.checkpoint import Safetensors
from tests.platforms.engine_run import EngineRun

pytest.importorskip("torch_fakechip")
SAID = "3 rows are too many; set --max-num-seqs 2.\n2 layers are too many."
OP_DEPTH, RUNNER_DEPTH = "tests.platforms.refusing:Refusing", "tests.platforms.refusing:RefusingRunner"
ROOT = Path(__file__).parents[3]


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What was read of the checkpoint: parts of tensors, and names of whole ones."""
    found: list[Any] = []
    for method in ("read", "whole"):
        original = getattr(Safetensors, method)

        def reading(source: Safetensors, what: Any, original: Any = original) -> Any:
            found.append(what)
            return original(source, what)

        monkeypatch.setattr(Safetensors, method, reading)
    return found


@pytest.mark.parametrize("platform", [OP_DEPTH, RUNNER_DEPTH])
def test_all_problems_are_said_before_weights_are_read(llama: Path, read: list[Any], platform: str) -> None:
    with pytest.raises(RefusedError) as raised:
        EngineRun(llama, platform, max_num_seqs=None)
    assert raised.value.message == SAID
    assert read == []
    with EngineRun(llama, "reference" if platform == OP_DEPTH else "numpy"):
        assert read, "the weights are read that way"


def test_a_runner_that_does_not_ask_is_checked_after_its_load(llama: Path, read: list[Any]) -> None:
    with pytest.raises(RefusedError) as raised:
        EngineRun(llama, "tests.platforms.refusing:RefusingLate", max_num_seqs=None)
    assert raised.value.message == SAID
    assert read


def test_they_reach_the_user_from_a_process_of_two(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = ("", "core", "platforms/cpu", "tests/fakechip", "tests/torch_fakechip")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(str(ROOT / path) for path in paths))
    with pytest.raises(RefusedError) as raised:
        EngineRun(llama, OP_DEPTH, max_num_seqs=None, executor=None, tensor_parallel_size=2)
    assert raised.value.message == SAID


def test_a_plan_says_them(llama: Path) -> None:
    config = build_config(
        model=str(llama), platform=OP_DEPTH, skip_tokenizer_init=True, load_format="dummy", dtype="float32"
    )
    with pytest.raises(RefusedError) as raised:
        plan_here(config)
    assert raised.value.message == SAID
