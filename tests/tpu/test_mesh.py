"""Tensor parallelism in one process: JAX's CPU as several devices, with the tokens of one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import pytest

from tessera.errors import RefusedError
from tests.engine.platforms.test_tokens_on_every_platform import SAMPLED, prompts
from tests.platforms.engine_run import EngineRun
from tests.platforms.tiny_models import save_family

HEADS = {"num_attention_heads": 8, "num_key_value_heads": 4, "hidden_size": 96, "vocab_size": 304}


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """wide("llama"): a model whose heads four devices can share."""
    folder = tmp_path_factory.mktemp("wide")
    return lambda name: folder / name if (folder / name).exists() else save_family(name, folder, **HEADS)


@pytest.mark.parametrize(
    ("name", "ranks", "kernels"),
    [
        ("llama", 4, "HostPlatform"),
        ("qwen3", 2, "HostPlatform"),
        ("mixtral", 4, "HostPlatform"),
        ("llama", 2, "InterpretedPlatform"),
    ],
)
def test_devices_answer_as_one(start: Any, wide: Any, name: str, ranks: int, kernels: str) -> None:
    questions, folder = prompts(3, longest=20, seed=1), wide(name)
    with EngineRun(folder, "reference") as run:
        expected = run.ask(questions, 6, ignore_eos=True, **SAMPLED)
    run = start(folder, platform=kernels, tensor_parallel_size=ranks)
    assert run.ask(questions, 6, ignore_eos=True, **SAMPLED) == expected
    runner = run.executor.runner
    assert run.engine.info.num_devices == ranks
    assert {plane.sharding.shard_shape(plane.shape)[1] for planes in runner.caches for plane in planes} == {4 // ranks}
    divided = [value for value in runner.model.values if value.sharding.shard_shape(value.shape) != value.shape]
    whole = sum(value.nbytes for value in runner.model.values)
    assert sum(value.nbytes for value in divided) > 0.9 * whole, "the products' weights, of which each has a share"


def test_heads_that_cannot_be_divided_are_refused(start: Any) -> None:
    with pytest.raises(RefusedError, match="2 key/value heads are not divisible by --tensor-parallel-size 4; lower it"):
        start("llama", tensor_parallel_size=4)


def test_devices_that_are_not_there_are_refused(start: Any, wide: Path) -> None:
    assert len(jax.devices("cpu")) == 4
    with pytest.raises(Exception, match="has 4 devices here, and device 4 was asked for; lower --tensor-parallel-size"):
        start("llama", tensor_parallel_size=8)
