"""Launches with prompts on the platforms for GPUs: their tokens are padded and captured in pieces, while attention runs
eagerly between the pieces, with the exact rows."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tessera.errors import EngineStepError
from tessera.platform import Launch
from tessera.platform import graph as graphs
from tessera.runner.input_layout import InputLayout
from tessera_triton.graphs import MIXED
from tests.gpus.conftest import PLATFORMS
from tests.platforms.emulated import QUESTIONS, Family, Reference, answers, on_device
from tests.platforms.engine_run import EngineRun
from tests.platforms.tiny_models import VOCAB

pytestmark = pytest.mark.compiler


def gpu(model: Path, **flags: Any) -> EngineRun:
    return on_device(model, PLATFORMS["cuda"], **flags)


def watch(run: EngineRun) -> list[Launch]:
    """The launches that are replayed from now on."""
    seen: list[Launch] = []
    runner = run.executor.runner
    replay = runner.graphs.replay

    def noting(executable: Any, launch: Launch) -> Any:
        seen.append(launch)
        return replay(executable, launch)

    runner.graphs.replay = noting
    return seen


def with_prompts(launches: Sequence[Launch]) -> list[Launch]:
    return [launch for launch in launches if launch.key.kind in ("mixed", "prefill")]


def test_each_launch_with_a_prompt_is_replayed(family: Family, reference: Reference, chip: Any) -> None:
    """Chunks of prompts, beside rows that decode and alone."""
    with gpu(family("llama")) as run:
        launches = watch(run)
        assert answers(run) == answers(reference("llama"))
        assert len(launches) == sum(len(step.rows) > 0 for step in run.steps)
        found = with_prompts(launches)
        assert {launch.key.kind for launch in found} == {"mixed", "prefill"}
        assert {launch.key.tokens for launch in found} == set(MIXED[:2])
        assert all(launch.key.rows == launch.num_rows for launch in found)
        assert any(launch.key.tokens > launch.num_tokens for launch in found)


def test_more_tokens_than_the_largest_size_keep_their_shape(
    family: Family, reference: Reference, chip: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tessera_triton.graphs.MIXED", (16,))
    with gpu(family("llama")) as run:
        launches = watch(run)
        assert answers(run) == answers(reference("llama"))
        assert {launch.key.tokens for launch in with_prompts(launches)} == {16}
        assert len(launches) < len(run.steps)


def test_preempted_rows_and_prefix_hits_are_the_reference_s(family: Family, reference: Reference, chip: Any) -> None:
    draw = random.Random(3)
    asked = [[draw.randrange(1, VOCAB) for _ in range(length)] for length in (20, 24, 28)]
    expected = reference("llama").ask(asked, 40, ignore_eos=True)
    longer = [*asked[-1], *expected[-1]][:40]
    alone = reference("llama").ask([longer], 6, ignore_eos=True)
    with gpu(family("llama"), kv_cache_memory_bytes=ROOM, block_size=16, max_model_len=96) as run:
        launches = watch(run)
        assert run.ask(asked, 40, ignore_eos=True) == expected
        assert run.engine.stats.counters.preemptions > 0
        run.ask([longer], 1, ignore_eos=True)
        launches.clear()
        hit = run.add(longer, 6, ignore_eos=True)
        run.finish()
        assert [run.answers[hit]] == alone
        assert run.cached[hit] == 32
        assert [launch.num_tokens for launch in with_prompts(launches)] == [8]


ROOM = 125_000
"""Bytes of ten blocks of 16 tokens, where three prompts and their answers take thirteen."""


def test_a_replay_leaves_attention_to_the_host(family: Family, chip: Any) -> None:
    """No product and no norm."""
    with gpu(family("llama"), check_kv_cache=False) as run:
        launches, layers = watch(run), run.executor.runner.model.facts.num_layers
        run.add(QUESTIONS[0], 4, ignore_eos=True)
        chip.reset()
        run.step()
        made = chip.ops()
        assert len(with_prompts(launches)) == 1
        assert {name: count for name, count in made.items() if name.startswith("kernels::")} == {
            "kernels::heads_input": layers, "kernels::decode_rows": layers,
            "kernels::_draw_tiles": 1, "kernels::_take_best": 1,
        }  # fmt: skip
        assert made["aten::mm"] == 1  # the head
        run.finish()


def test_padding_that_writes_a_slot_is_noticed(family: Family, chip: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    build = InputLayout.build

    def careless(shape: Any, rows: Any, lengths: Any, null_row: int) -> InputLayout:
        layout = build(shape, rows, lengths, null_row)
        padded = layout.token_rows == null_row
        if shape.key.width == 1 or not len(rows):
            return layout
        return replace(layout, token_rows=layout.token_rows * ~padded + rows[0] * padded)

    with gpu(family("llama")) as run:
        monkeypatch.setattr(InputLayout, "build", staticmethod(careless))
        with pytest.raises(EngineStepError, match="padding writes to group 0, .* expected the null block"):
            answers(run)


def test_a_plan_of_another_launch_is_noticed(
    family: Family, reference: Reference, chip: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stale(capturing: Any, call: Callable[[Any], Any], plan: Any) -> Any:
        capturing.end()
        result = call(plan)
        capturing.calls.append(lambda launch: result.copy_(call(plan)))
        capturing.begin()
        return result

    monkeypatch.setattr(graphs._Capturing, "eagerly", stale)
    with gpu(family("llama"), check_kv_cache=False) as run:
        assert answers(run) != answers(reference("llama"))
