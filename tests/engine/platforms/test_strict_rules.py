"""The strict platform's rules hold where core runs by itself, and each of them bites who breaks it."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch

from tessera.platform import BucketedShapes
from tessera.testing import HostReads, StrictPlatform
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
        (planes,) = run.executor.runner.memory.buffers
        run.ask(QUESTIONS[:1], 4)
        for plane in planes:
            untouched = (plane == 255).all(-1)
            assert untouched.sum() > len(plane) // 2
            assert plane[untouched].view(torch.float32).isnan().all()
        assert not untouched.all()


def test_tables_on_the_host_are_those_on_the_device(llama: Path) -> None:
    with EngineRun(llama, "strict", depth=2) as run:
        ((backend, group),) = run.executor.runner.attention_groups
        plan, pairs = backend.plan, []

        def planned(launch, group, buffers):
            pairs.append((launch.query_start_loc.clone(), launch.query_start_loc_host))
            pairs.append((launch.block_tables[group.number].clone(), launch.block_tables_host[group.number]))
            return plan(launch, group, buffers)

        backend.plan = planned
        run.ask(QUESTIONS, 40)
    assert group.layers == (0, 1)
    assert len({on_host.tobytes() for _, on_host in pairs}) > 10
    assert all(tensor.tolist() == on_host.tolist() for tensor, on_host in pairs)


class CapturesDecodeAlone(StrictPlatform):
    capabilities = dataclasses.replace(StrictPlatform.capabilities, static_shapes=False)

    def shapes(self, model, config):
        return BucketedShapes((2, 8), blocks=(8,))


def test_launches_that_are_not_captured_take_no_buffers(llama: Path) -> None:
    with EngineRun(llama, f"{__name__}:CapturesDecodeAlone") as run:
        buffers = run.executor.runner.buffers
        run.ask([[1] * 3], 4)
        before = set(buffers._flat)
        assert any(name.startswith("strict0") for name, *_ in before), "plans of captured launches are kept there"
        for length in range(5, 50, 5):
            run.ask([[1] * length], 4)
        assert set(buffers._flat) == before


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
    assert reads.lines
    assert all(__file__ in found for found in reads.lines), reads.lines


def test_what_stays_on_the_device_is_not_counted() -> None:
    x = torch.arange(6.0)
    with HostReads() as reads:
        torch.where(x > 2, x, 0.0).index_put_((torch.tensor([1]),), torch.tensor(5.0))
        x.view(2, 3).sort(-1)
        x.masked_fill(x > 1, 0.0).clamp(min=0).to(torch.int32)
    assert reads.lines == []
    x.sum().item()
    assert reads.lines == []
