"""`neuron` alone: what stands beside a step's program, and where attention is the reference's."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.platforms.emulated import Family
from tests.platforms.engine_run import EngineRun
from tests.vendors.chosen import PLATFORM, start

pytestmark = pytest.mark.compiler


def test_attention_runs_under_a_mask_or_as_the_reference(family: Family) -> None:
    for name, backends in (("llama", {"sdpa"}), ("gemma2", {"reference"})):  # which has soft caps
        with start(family(name), enforce_eager=True) as run:
            assert {backend.name for backend, _ in run.executor.runner.attention_groups} == backends


def test_a_step_launches_its_program_and_little_beside_it(chip: Any, compiled: list[str], family: Family) -> None:
    with start(family("llama"), check_kv_cache=False) as run:
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
        assert len(compiled) == PLATFORM.programs


def _ops_of_a_replay(chip: Any, run: EngineRun) -> dict[str, int]:
    runner = run.executor.runner
    program = next(program for key, program in runner.executables.items() if key.rows == 1 and key.width == 1)
    chip.reset()
    with torch.inference_mode():
        program.call(*program.inputs)
    return chip.ops()
