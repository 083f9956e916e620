"""A model from a plugin with two cache groups that grow and a StateSpec, and an op that a platform may replace."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

import pytest
import torch

from tessera.errors import ModelError, PlatformError
from tests.engine.platforms.conftest import Start
from tests.engine.platforms.test_tokens_on_every_platform import SAMPLED, prompts
from tests.platforms.engine_run import EngineRun
from tests.platforms.mixed_model import KINDS, WINDOW, save_mixed
from tests.platforms.mixed_oracle import MixedOracle
from tests.platforms.mixed_plugin import MIXED_PLUGIN
from tests.platforms.softening import SOFTENING

TOKEN_BYTES = 2 * 2 * 2 * 12 * 4  # of a float32 token in the two layers that grow
STATE_BYTES = 2 * 6 * 12 * 12 * 4
LONGEST = 30
QUESTIONS = prompts(9, longest=45, seed=15)

Greedy = Callable[[int, int], list[int]]


@pytest.fixture(scope="session")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_mixed(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="session")
def greedy(mixed: Path) -> Greedy:
    """greedy(3, 10): the oracle's answer to question 3."""
    oracle = MixedOracle(mixed)

    @cache
    def answer(number: int) -> list[int]:
        return oracle.greedy(QUESTIONS[number], LONGEST)

    return lambda number, count: answer(number)[:count]


@pytest.fixture
def start_mixed(start: Start, mixed: Path) -> Start:
    return partial(start, mixed, plugins=[MIXED_PLUGIN])


def test_a_batch_answers_as_the_oracle(start_mixed: Start, greedy: Greedy) -> None:
    answers = start_mixed(max_num_seqs=4).ask(QUESTIONS, LONGEST)
    assert answers == [greedy(number, LONGEST) for number in range(len(QUESTIONS))]


def test_chunks_change_no_token(start_mixed: Start, greedy: Greedy) -> None:
    run = start_mixed(max_num_seqs=4, max_num_batched_tokens=8)
    assert run.ask(QUESTIONS[:5], 12) == [greedy(number, 12) for number in range(5)]
    assert any(len(step.samples) < len(step.rows) for step in run.steps)


def test_preemption_computes_states_again(start_mixed: Start, greedy: Greedy) -> None:
    room = 200 * TOKEN_BYTES + 9 * STATE_BYTES
    run = start_mixed(max_model_len=96, kv_cache_memory_bytes=room)
    assert run.ask(QUESTIONS, LONGEST) == [greedy(number, LONGEST) for number in range(len(QUESTIONS))]
    assert run.engine.stats.counters.preemptions > 0


def test_a_chat_goes_on_from_a_copy_of_its_state(start_mixed: Start, mixed: Path) -> None:
    run = start_mixed(max_model_len=128)
    first = run.ask(QUESTIONS[:2], LONGEST)
    turns = [[*question, *answer, 5, 6, 7] for question, answer in zip(QUESTIONS, first, strict=False)]
    unit = run.engine._scheduler._cache.prefix_cache.unit
    assert run.ask(turns, 12) == [MixedOracle(mixed).greedy(turn, 12) for turn in turns]
    for key, question in zip((2, 3), QUESTIONS, strict=False):
        last = len(question) + LONGEST - 2  # the first position of the last step
        assert run.cached[key] == last // unit * unit > 0


def test_without_prefix_caching_nothing_is_copied(start_mixed: Start, greedy: Greedy) -> None:
    run = start_mixed(enable_prefix_caching=False)
    assert run.ask(QUESTIONS[:2] * 2, 12) == [greedy(0, 12), greedy(1, 12)] * 2
    assert set(run.cached.values()) == {0}
    assert not any(step.copies for step in run.steps)


def test_siblings_compute_a_state_each(start_mixed: Start, mixed: Path) -> None:
    run = start_mixed()
    leader = run.add(QUESTIONS[3], 12, seed=0, **SAMPLED)
    keys = [leader] + [run.add(QUESTIONS[3], 12, seed=seed, leader=leader, **SAMPLED) for seed in range(1, 4)]
    run.finish()
    with EngineRun(mixed, "reference", plugins=[MIXED_PLUGIN]) as reference:
        alone = [reference.ask([QUESTIONS[3]], 12, seed=seed, **SAMPLED)[0] for seed in range(4)]
    assert [run.answers[key] for key in keys] == alone


def test_its_caches_are_three_groups(start_mixed: Start) -> None:
    run = start_mixed()
    groups = run.executor.runner.plan.groups
    assert [(group.kind, len(group.layers), group.window) for group in groups] == [
        ("paged", 1, None),
        ("state", KINDS.count("linear"), None),
        ("window", 1, WINDOW),
    ]


def test_logits_are_the_oracles(mixed: Path) -> None:
    oracle = MixedOracle(mixed)
    with EngineRun(mixed, "strict", plugins=[MIXED_PLUGIN]) as run:
        key = run.add(QUESTIONS[1], 1, logprobs=20)
        run.finish()
    (row,) = run.logprobs[key]
    expected = torch.log_softmax(oracle.logits(QUESTIONS[1]), -1)
    assert torch.allclose(torch.from_numpy(row.logprobs[0]), expected[torch.from_numpy(row.ids[0]).long()], atol=1e-4)


def test_a_platform_may_replace_an_op_that_a_plugin_brings(mixed: Path, greedy: Greedy) -> None:
    with EngineRun(mixed, SOFTENING, plugins=[MIXED_PLUGIN]) as run:
        assert run.ask(QUESTIONS[:2], 12) == [greedy(0, 12), greedy(1, 12)]
        ops = run.executor.runner.build.ops
        assert {choice.how for (name, _), choice in ops.choices.items() if name == "soften"} == {"native"}
        assert run.executor.platform.softened > 0


def test_an_op_without_a_kernel_is_an_error_where_fallbacks_are_forbidden(mixed: Path) -> None:
    with pytest.raises(PlatformError, match=r"op 'soften' \(.*\) would run on the reference") as raised:
        EngineRun(mixed, "cpu", plugins=[MIXED_PLUGIN], no_fallback=True)
    assert "\n" not in raised.value.message


def test_without_the_plugin_the_architecture_is_unknown(mixed: Path) -> None:
    with pytest.raises(ModelError, match="'TinyMixed' is not supported"):
        EngineRun(mixed, "cpu")
