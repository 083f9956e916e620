"""Each family's shards on two ranks answer as transformers does, also where experts are divided whole."""

from __future__ import annotations

import pytest

from tessera.errors import ModelError
from tests.platforms.engine_run import EngineRun
from tests.platforms.threads import THREADS
from tools.parity.families import FAMILIES
from tools.parity.oracle import NUM_TOKENS

# Odd numbers of heads.
UNDIVIDED = {
    "llama2": "the number of attention heads (5) is not divisible by --tensor-parallel-size 2",
    "smollm": "the number of attention heads (9) is not divisible by --tensor-parallel-size 2",
    "qwen3": "the number of key/value heads (3) is not divisible by --tensor-parallel-size 2",
}
# Families whose layers have experts.
MIXTURES = [
    "qwen3-moe", "qwen3-moe-shares", "mixtral", "gpt-oss", "llama4", "llama4-plain", "glm4-moe", "glm4-moe-shares",
    "qwen3-next", "qwen3.5-moe", "granite4-h", "nemotron-3", "nemotron-3-latent", "jamba", "deepseek-v2",
    "deepseek-v2-lite", "deepseek-v3", "glm4-moe-lite", "deepseek-v3.2", "axk2", "glm-moe-dsa", "minimax",
    "minimax-m2", "kimi-linear", "kimi-linear-published", "lfm2-moe", "ernie4.5-moe", "phimoe", "phimoe-window",
]  # fmt: skip


def ask_two_ranks(oracle, family, **flags):
    """How many experts a layer has, and notes, of an engine whose answers are transformers'."""
    folder, answers = oracle(family)
    length = FAMILIES[family].max_model_len
    with EngineRun(folder, "cpu", executor=THREADS, tensor_parallel_size=2, max_model_len=length, **flags) as run:
        found = run.ask([answer.prompt for answer in answers[::3]], NUM_TOKENS, ignore_eos=True)
    assert found == [list(answer.answer) for answer in answers[::3]]
    return run.executor.workers[0].runner.model.facts.num_experts, run.engine.info.notes


@pytest.mark.parametrize("family", [family for family in FAMILIES if family not in UNDIVIDED])
def test_two_ranks(oracle, family):
    number, notes = ask_two_ranks(oracle, family)
    assert bool(number) == (family in MIXTURES)
    assert not [note for note in notes if "experts" in note]


@pytest.mark.parametrize("family", MIXTURES)
def test_two_ranks_with_whole_experts(oracle, family):
    """Most numbers of experts are odd."""
    number, notes = ask_two_ranks(oracle, family, enable_expert_parallel=True)
    sizes = f"{number // 2}" if number % 2 == 0 else f"{number // 2 + 1} or {number // 2}"
    assert f"each device has {sizes} of a layer's {number} experts (--enable-expert-parallel)" in notes


@pytest.mark.parametrize("family", UNDIVIDED)
def test_what_cannot_be_divided_is_one_line(oracle, family):
    folder, _ = oracle(family)
    with pytest.raises(ModelError) as raised:
        EngineRun(folder, "cpu", executor=THREADS, tensor_parallel_size=2)
    assert UNDIVIDED[family] in str(raised.value)
    assert "\n" not in str(raised.value)
