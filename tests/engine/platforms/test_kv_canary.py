"""--check-kv-cache: mistakes planted in the scheduler's cache and in launches are named at the step they happen in.
EngineRun has the check on, so all other tests that use it show that it names nothing where nothing is wrong."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tessera.config import CacheConfig
from tessera.errors import EngineStepError, PlatformError
from tessera.kvcache import tables
from tessera.kvcache.pool import BlockPool
from tessera.kvcache.prefix_cache import PrefixCache
from tessera.llm import LLM
from tessera.runner.input_batch import CoreInputBatch
from tessera.runner.kv_canary import CanaryObserver
from tessera.runner.launch_builder import LaunchBuilder
from tessera.sampling_params import SamplingParams
from tessera.step import SchedulerOutput
from tessera.testing.conformance import conformance_cases
from tessera.testing.conformance.target import Target
from tessera.testing.conformance.tiny import TinyRun
from tests.platforms.engine_run import PLATFORMS, EngineRun
from tests.platforms.threads import THREADS
from tests.platforms.tiny_models import VOCAB, save_family

SIZES = {"reference": 16, "strict": 24}
BLOCKS = 10
BYTES = 2 * 2 * 2 * 12 * 4  # of a token: keys and values of two layers, each of two heads of twelve float32 numbers
FOREVER = {"ignore_eos": True, "temperature": 1.0}


@pytest.fixture(params=[("reference", 1), ("strict", 2)], ids=["reference-depth1", "strict-depth2"])
def place(request: pytest.FixtureRequest) -> tuple[str, int]:
    return request.param


@pytest.fixture
def size(place: tuple[str, int]) -> int:
    """Tokens of a block."""
    return SIZES[place[0]]


@pytest.fixture
def begin(llama: Path, place: tuple[str, int], size: int) -> Callable[..., EngineRun]:
    """An engine whose cache has ten blocks."""

    def make(model: Path = llama, **flags: Any) -> EngineRun:
        cache = (BLOCKS + 1) * size * BYTES
        flags = {"max_model_len": 8 * size, "kv_cache_memory_bytes": cache, "max_num_batched_tokens": 128, **flags}
        return EngineRun(model, place[0], depth=place[1], **flags)

    return make


def text(first: int, count: int) -> list[int]:
    """Tokens that no other text of this test has."""
    return [3 + (first + 7 * place + place // 5) % (VOCAB - 3) for place in range(count)]


def observers(runner: Any) -> list[type]:
    return [type(observer) for observer in runner.observers]


def named(run: EngineRun, planted: Callable[[SchedulerOutput], Any]) -> str:
    """What the check says; it must name the first step at which the mistake is seen."""
    with pytest.raises(EngineStepError, match=r"^KV cache check: in step \d+, request '\d+' \(row \d+\) ") as raised:
        run.finish()
    said = raised.value.message
    (number,) = re.findall(r"^KV cache check: in step (\d+),", said)
    assert int(number) == next(step.step for step in run.steps if planted(step)), said
    return said


def test_a_block_freed_too_early(begin: Callable, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A block that is found by prefix stays in the queue of free ones, and is given to another request in the end."""

    def touch(pool: BlockPool, blocks: Any) -> None:
        pool.ref_count[blocks] += 1

    monkeypatch.setattr(BlockPool, "touch", touch)
    run = begin()
    shared = text(0, 2 * size)
    run.ask([[*shared, 5]], 2)
    reader = run.add([*shared, 6], 3 * size, **FOREVER)
    writer = run.add(text(50, 5 * size - 3), 2 * size, **FOREVER)

    def again(step: SchedulerOutput) -> bool:
        """Blocks 1 and 2 are the prefix, which nobody may get after the request that found it."""
        (delta,) = step.blocks
        return bool(set(delta.blocks.tolist()) & {1, 2}) and not any(one.request_id in "01" for one in step.opened)

    said = named(run, again)
    assert f"request '{writer}'" in said
    assert re.search(
        rf"found position \d+ of request '0', written in step 0, which request '{reader}' \(row \d\) needs", said
    )


def test_a_block_given_up_before_the_window_has_passed_it(
    begin: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = tables._ends
    monkeypatch.setattr(tables, "_ends", lambda *given: right(*given) + 1)
    run = begin(save_family("mistral", tmp_path))
    run.add(text(0, 40), 10, **FOREVER)
    assert "found the null block" in named(run, lambda step: (step.blocks[0].blocks == 0).any())


def test_a_slot_written_twice(begin: Callable, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Siblings write into the block that they share."""
    monkeypatch.setattr(tables.Sharing, "writes", lambda *given: ())
    run = begin()
    leader = run.add(text(0, size + size // 2), size, **FOREVER)
    follower = run.add(text(0, size + size // 2), size, seed=1, leader=leader, **FOREVER)
    said = named(run, lambda step: any(one.request_id == str(follower) for one in step.opened))
    assert "expected a block of its own, found" in said


def test_a_table_of_another_row(begin: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    run = begin()
    for first in (0, 30, 60):
        run.add(text(first, 20), 30, **FOREVER)
    while len(run.steps) < 6:
        run.step()
    right, planted_at = LaunchBuilder._table, len(run.steps)

    def next_row(builder: LaunchBuilder, *given: Any) -> Any:
        table = right(builder, *given)
        return table.copy_(table.roll(1, 0))

    monkeypatch.setattr(LaunchBuilder, "_table", next_row)
    said = named(run, lambda step: step.step == planted_at)
    assert re.search(
        r"reads position 0 in group 0, block \d+, slot \d+: expected position 0 of its own tokens, found ", said
    )


def test_a_table_as_it_was_before(begin: Callable, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The table on the device is not copied again when a row that decodes gets a block."""
    right = CoreInputBatch.apply

    def unnoticed(batch: CoreInputBatch, step: SchedulerOutput) -> None:
        changed = batch.tables_changed
        right(batch, step)
        if not step.opened:
            batch.tables_changed = changed

    monkeypatch.setattr(CoreInputBatch, "apply", unnoticed)
    run = begin()
    run.add(text(0, 2 * size + 1), 2 * size, **FOREVER)  # its table has the more blocks
    short = run.add(text(50, 5), 2 * size, **FOREVER)
    said = named(run, lambda step: not step.opened and len(step.blocks[0].rows))
    assert f"request '{short}' " in said
    assert f"reads position {size} in group 0, block 0, slot 0: " in said
    assert said.endswith("found the null block.")


def test_a_stale_prefix(begin: Callable, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks are known for what they held before they were used again."""
    monkeypatch.setattr(PrefixCache, "forget", lambda *given: None)
    run = begin()
    for tokens in (text(0, 2 * size + 1), text(20, 6 * size), text(40, 6 * size)):
        run.ask([tokens], 2)
    again = run.add(text(0, 2 * size + 1), 2)
    said = named(run, lambda step: any(one.request_id == str(again) for one in step.opened))
    assert re.search(r"expected position 0 of its own tokens, found position \d+ of request '2', written in step", said)


def test_a_slot_written_twice_on_pipeline_stages(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables.Sharing, "writes", lambda *given: ())
    with EngineRun(llama, "reference", pipeline_parallel_size=2, depth=2, executor=THREADS) as run:
        executor: Any = run.engine._executor
        assert [observers(worker.runner) for worker in executor.workers] == [[CanaryObserver], [CanaryObserver]]
        leader = run.add(text(0, 24), 16, **FOREVER)
        run.add(text(0, 24), 16, seed=1, leader=leader, **FOREVER)
        with pytest.raises(EngineStepError, match="expected a block of its own, found"):
            run.finish()


# ---- where it is on


def test_it_is_off_unless_asked_for_and_then_absent(llama: Path) -> None:
    with EngineRun(llama, "reference", check_kv_cache=False) as run:
        assert observers(run.executor.runner) == []
    assert not CacheConfig().check


def test_an_llm_ends_with_its_line(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables.Sharing, "writes", lambda *given: ())
    params = SamplingParams(n=2, max_tokens=8, temperature=1.0)
    options = {"skip_tokenizer_init": True, "dtype": "float32", "kv_cache_memory_bytes": 1 << 21}
    with (
        LLM(llama, platform=PLATFORMS["reference"], check_kv_cache=True, **options) as llm,
        pytest.raises(EngineStepError, match=r"^KV cache check: in step \d+, request '.*' \(row \d\) writes position"),
    ):
        llm.generate(prompt_token_ids=[text(0, 20)], sampling_params=params, use_tqdm=False)


def test_conformance_has_it_on_and_says_what_it_found(monkeypatch: pytest.MonkeyPatch) -> None:
    target = Target.named("reference")
    with TinyRun(target, "float32") as run:
        assert observers(run.runner) == [CanaryObserver]
    (forks,) = [case for case in conformance_cases("reference") if case.id == "forks/answers"]
    assert forks.result().status == "passed"
    monkeypatch.setattr(tables.Sharing, "writes", lambda *given: ())
    failed = forks.result()
    assert failed.status == "failed"
    assert failed.text.startswith("raised EngineStepError: KV cache check: in step ")


def test_a_runner_of_the_platforms_own_refuses_it(llama: Path) -> None:
    with pytest.raises(
        PlatformError, match="'numpy' runs models its own way, which does not take --check-kv-cache; remove the flag"
    ):
        EngineRun(llama, "numpy", check_kv_cache=True)
