"""Whole engines on `neuron` over an emulated device whose programs have fixed shapes: they answer as the reference, in
programs that were all compiled before the first step, and no step reads the device behind its back."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.neuron.conftest import PLATFORM, python_path
from tests.platforms.emulated import (
    Family,
    Reference,
    answers,
    answers_with_drafts,
    on_device,
    share_a_batch,
)
from tests.platforms.engine_run import EngineRun

pytestmark = pytest.mark.compiler

BLOCK = 128
SHAPES = 3 + 1
"""Rows 1, 2 and 4 that decode and prompts of 128 tokens, all over 2 blocks."""
FAMILIES = ("llama", "gemma2", "mixtral")


def neuron(model: Path, **flags: Any) -> EngineRun:
    return on_device(model, PLATFORM, **{"block_size": BLOCK, **flags})


@pytest.mark.parametrize("name", FAMILIES)
def test_answers_are_the_reference_s(
    chip: Any, compiled: list[str], family: Family, reference: Reference, name: str
) -> None:
    with neuron(family(name)) as run:
        runner = run.executor.runner
        assert set(runner.executables) == set(runner.shapes.keys())
        assert len(compiled) == len(runner.executables) == SHAPES
        chip.reset()
        with chip.refused_reads():
            assert answers(run) == answers(reference(name))
            assert answers(run, 2) == answers(reference(name), 2)  # prefix hits
        assert chip.reads() == {}
        assert run.engine.info.notes == []
        assert len(compiled) == SHAPES


def test_attention_runs_under_a_mask_or_as_the_reference(family: Family) -> None:
    for name, backends in (("llama", {"sdpa"}), ("gemma2", {"reference"})):  # which has soft caps
        with neuron(family(name), enforce_eager=True) as run:
            assert {backend.name for backend, _ in run.executor.runner.attention_groups} == backends


def test_a_step_launches_its_program_and_little_beside_it(chip: Any, compiled: list[str], family: Family) -> None:
    with neuron(family("llama"), check_kv_cache=False) as run:
        run.add([5, 6, 7], 30, ignore_eos=True)
        for _ in range(6):
            run.step()
        inside = _ops_of_a_replay(chip, run)
        chip.reset()
        for _ in range(10):
            run.step()
        beside = {name: count / 10 - inside.get(name, 0) for name, count in chip.ops().items()}
        assert {name.removeprefix("aten::"): count for name, count in beside.items() if count} == {
            "index_select": 1,  # the newest tokens, of which each step stores its own
            "_index_put_impl_": 1,
            "mm": 1,  # the head, of which the largest is drawn
            "argmax": 1,
        }
        assert set(chip.waits()) == {"an event"}
        assert len(compiled) == SHAPES


def _ops_of_a_replay(chip: Any, run: EngineRun) -> dict[str, int]:
    runner = run.executor.runner
    program = next(program for key, program in runner.executables.items() if key.rows == 1 and key.width == 1)
    chip.reset()
    with torch.inference_mode():
        program.call(*program.inputs)
    return chip.ops()


def test_shapes_grow_with_the_logarithm_of_what_is_served(family: Family) -> None:
    with neuron(family("llama"), block_size=16, max_num_seqs=64, max_num_batched_tokens=256, enforce_eager=True) as run:
        keys = run.executor.runner.shapes.keys()
        assert len(keys) == (7 + 2) * 3
        assert {key.rows for key in keys if key.kind == "decode"} == {1, 2, 4, 8, 16, 32, 64}
        assert {key.width for key in keys if key.kind == "prefill"} == {128, 256}
        assert {key.blocks for key in keys} == {4, 8, 16}


def test_two_devices_answer_as_one(
    family: Family, reference: Reference, chip: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", python_path())
    with neuron(family("llama"), executor=None, tensor_parallel_size=2) as run:
        assert run.engine.info.notes == []
        assert answers(run, 4) == answers(reference("llama"), 4)


def test_drafts_change_no_token(compiled: list[str], family: Family, reference: Reference) -> None:
    """They are verified in programs of their own, which are compiled too."""
    expected = answers(reference("llama"), 8)
    found, kinds = answers_with_drafts(partial(neuron, family("llama")), expected)
    assert (found, kinds) == (expected, {"decode", "verify", "prefill"})
    assert len(compiled) == 2 * 2 + 1


def test_adapters_and_grammars_share_a_batch(family: Family, tmp_path: Path) -> None:
    share_a_batch(partial(neuron, family("llama")), family("llama"), tmp_path)
