"""Each family's shards on two ranks answer as transformers does."""

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


@pytest.mark.parametrize("family", [family for family in FAMILIES if family not in UNDIVIDED])
def test_two_ranks(oracle, family):
    folder, answers = oracle(family)
    length = FAMILIES[family].max_model_len
    with EngineRun(folder, "cpu", executor=THREADS, tensor_parallel_size=2, max_model_len=length) as run:
        found = run.ask([answer.prompt for answer in answers[::3]], NUM_TOKENS, ignore_eos=True)
    assert found == [list(answer.answer) for answer in answers[::3]]


@pytest.mark.parametrize("family", UNDIVIDED)
def test_what_cannot_be_divided_is_one_line(oracle, family):
    folder, _ = oracle(family)
    with pytest.raises(ModelError) as raised:
        EngineRun(folder, "cpu", executor=THREADS, tensor_parallel_size=2)
    assert UNDIVIDED[family] in str(raised.value)
    assert "\n" not in str(raised.value)
