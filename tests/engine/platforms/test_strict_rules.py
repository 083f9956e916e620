"""The strict platform's rules hold where core runs by itself, and each of them bites who breaks it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tessera.testing import HostReads
from tests.engine.platforms.conftest import Alone
from tests.engine.platforms.test_tokens_on_every_platform import prompts
from tests.platforms.engine_run import EngineRun

QUESTIONS = prompts(5, seed=12)


def run_broken(llama: Path, name: str) -> EngineRun:
    return EngineRun(llama, f"tests.platforms.broken:{name}", depth=2)


@pytest.mark.parametrize("name", ["strict", "strict-separate"])
def test_every_launch_of_a_step_is_replayed(llama: Path, name: str) -> None:
    with EngineRun(llama, name, depth=2) as run:
        warm = run.executor.runner.graphs.replays
        run.ask(QUESTIONS, 10, ignore_eos=True)
        runner, steps = run.executor.runner, run.steps
    assert runner.graphs.replays - warm >= len(steps)
    assert set(runner.executables) == set(runner.shapes.keys())
    kinds = [{bool(n == 1) for n in step.num_scheduled_tokens} for step in steps]
    assert any(len(kind) == 2 for kind in kinds) == (name == "strict")


def test_unused_memory_is_poisoned_and_stays_so(llama: Path) -> None:
    with EngineRun(llama, "strict") as run:
        (buffer,) = run.executor.runner.memory.buffers
        run.ask(QUESTIONS[:1], 4)
        untouched = (buffer == 255).all(-1)
        assert untouched.sum() > len(buffer) // 2
        assert buffer[untouched].view(torch.float32).isnan().all()
        assert not untouched.all()


def test_an_op_that_reads_the_device_is_found(llama: Path) -> None:
    with run_broken(llama, "ReadingPlatform") as run, pytest.raises(AssertionError, match=r"broken\.py"):
        run.ask(QUESTIONS)


def test_a_tensor_that_moves_is_found(llama: Path) -> None:
    with run_broken(llama, "MovingPlatform") as run, pytest.raises(AssertionError, match="with other buffers: launch"):
        run.ask(QUESTIONS)


def test_wide_indices_are_found(llama: Path) -> None:
    with pytest.raises(AssertionError, match="int64"):
        run_broken(llama, "WideIndexPlatform")


@pytest.mark.parametrize("name", ["CuriousPlatform", "MixingPlatform"])
def test_reading_unused_memory_or_padding_changes_the_answer(llama: Path, alone: Alone, name: str) -> None:
    expected = [alone(question) for question in QUESTIONS]
    with run_broken(llama, name) as run:
        assert run.ask(QUESTIONS) != expected


READS = {
    "item": lambda x: x.sum().item(),
    "bool": lambda x: bool((x > 0).any()),
    "numpy": lambda x: x.numpy(),
    "tolist": lambda x: x.tolist(),
    "mask": lambda x: x[x > 0],
    "nonzero": torch.nonzero,
    "where": lambda x: torch.where(x > 0),
    "unique": lambda x: x.unique(),
    "repeat": lambda x: x.repeat_interleave(x.int()),
    "equal": lambda x: torch.equal(x, x + 1),
}


@pytest.mark.parametrize("name", READS)
def test_each_way_of_reading_is_counted_once_at_its_line(name: str) -> None:
    x = torch.ones(3)
    with HostReads() as reads:
        READS[name](x)
    assert reads.found
    assert all(__file__ in found for found in reads.found), reads.found


def test_what_stays_on_the_device_is_not_counted() -> None:
    x = torch.arange(6.0)
    with HostReads() as reads:
        torch.where(x > 2, x, 0.0).index_put_((torch.tensor([1]),), torch.tensor(5.0))
        x.view(2, 3).sort(-1)
        x.masked_fill(x > 1, 0.0).clamp(min=0).to(torch.int32)
    assert reads.found == []
    x.sum().item()
    assert reads.found == []
