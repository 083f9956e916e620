"""The walk of a decode step: what the host launches, copies and waits for, counted by the chip."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch.utils._python_dispatch import TorchDispatchMode

from tessera.arrays import int32
from tessera.step import BlockCopy
from tests.gpus.conftest import PLATFORMS
from tests.platforms.engine_run import EngineRun

pytestmark = pytest.mark.compiler

ROWS, STEPS, LAYERS = 4, 6, 2
COPIES = 6
"""To the device: positions, lengths, slots and places, from pinned memory."""
SAMPLING = {"aten::mm": 1, "kernels::_draw_tiles": 1, "kernels::_take_best": 1}
AROUND = {"aten::index_select": 1, "aten::_index_put_impl_": 1}
"""The newest tokens are gathered on the device, and the sampled ones stored there."""


class Calls(TorchDispatchMode):
    """What the host asks of torch, by the op's name."""

    def __init__(self) -> None:
        super().__init__()
        self.found: Counter[str] = Counter()

    def __torch_dispatch__(self, op: Any, types: Any, arguments: Any = (), named: Any = None) -> Any:
        self.found[op.name().partition(".")[0]] += 1
        return op(*arguments, **(named or {}))


def walked(model: Path, chip: Any, **flags: Any) -> tuple[dict[str, float], Counter[str], Counter[str]]:
    """Of steps that decode ROWS rows: ops of the chip per step, what it waited for, and the host's calls of one."""
    with EngineRun(
        model, PLATFORMS["cuda"], depth=2, max_num_seqs=ROWS, executor=None, check_kv_cache=False, **flags
    ) as run:
        for row in range(ROWS):
            run.add([5 + row, 6, 7], 20, ignore_eos=True, temperature=1.0)
        for _ in range(4):
            run.step()
        chip.reset()
        for _ in range(STEPS):
            run.step()
        ops, waits = chip.ops(), Counter(chip.waits())
        assert (chip.copies(), chip.reads()) == (STEPS, {})  # the sampled tokens, once a step
        with Calls() as calls:
            run.step()
    return {name: count / STEPS for name, count in ops.items()}, waits, calls.found


def test_a_decode_step_is_one_replay_and_its_sampling(family: Callable[[str], Path], chip: Any) -> None:
    ops, waits, calls = walked(family("llama"), chip)
    assert ops == {**AROUND, **SAMPLING}
    assert waits == {"an event": STEPS}  # for the tokens of the step before
    assert calls["fakechip::replay"] == 1
    assert calls["aten::copy_"] == COPIES


def test_blocks_are_copied_in_all_layers_at_once(family: Callable[[str], Path], chip: Any) -> None:
    with EngineRun(family("llama"), PLATFORMS["cuda"], max_num_seqs=2, check_kv_cache=False) as run:
        memory = run.executor.runner.memory
        assert len(memory.buffers[0]) == 2 * LAYERS  # keys and values of each have memory of their own
        chip.reset()
        memory.copy([BlockCopy(0, int32([1, 2]), int32([3, 4]))])
        assert chip.ops() == {"aten::index": 1, "aten::_index_put_impl_": 1}


def test_without_graphs_each_kernel_of_a_layer_is_launched(family: Callable[[str], Path], chip: Any) -> None:
    ops, waits, calls = walked(family("llama"), chip, enforce_eager=True)
    layer = {"kernels::heads_input": 1, "kernels::decode_rows": 1, "kernels::_norm_rows": 2, "kernels::_elements": 1}
    expected = Counter({name: count * LAYERS for name, count in layer.items()})
    expected.update({"kernels::_look_up": 1, "kernels::_norm_rows": 1, "aten::mm": 4 * LAYERS})  # and the last norm
    expected.update(AROUND | SAMPLING)
    assert ops == expected
    assert (calls["fakechip::replay"], calls["aten::copy_"]) == (0, COPIES)
    assert waits["an event"] <= STEPS
