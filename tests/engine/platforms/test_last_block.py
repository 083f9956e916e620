"""Of the last block a prompt needs the keys and values of all its tokens, and all the rest for its last one alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from torch import Tensor

from tests.engine.platforms.test_tokens_on_every_platform import prompts
from tests.platforms.engine_run import EngineRun
from tests.platforms.tiny_models import FAMILIES, save_family


class Counted:
    """A block, and how many tokens each call of its second half had."""

    def __init__(self, block) -> None:
        self.attend, self.block = block.attend, block
        self.tokens: list[int] = []

    def transform(self, states: Sequence[Tensor]):
        self.tokens.append(len(states[0]))
        assert {len(state) for state in states} == {len(states[0])}
        return self.block.transform(states)


def counted(run: EngineRun) -> list[Counted]:
    model = run.executor.runner.model
    model.blocks = [Counted(block) for block in model.blocks]
    return model.blocks


@pytest.mark.parametrize("family", FAMILIES)
def test_only_the_last_token_of_a_prompt_goes_through_all_of_the_last_block(family: str, tmp_path: Path) -> None:
    questions = prompts(5, seed=19)
    with EngineRun(save_family(family, tmp_path), "reference") as run:
        first, *_, last = counted(run)
        run.ask(questions, 3)
    assert first.tokens[0] == sum(map(len, questions))
    assert last.tokens[0] == len(questions)
    assert first.tokens[1:] == last.tokens[1:]


def test_a_prompt_whose_tokens_are_scored_goes_through_all_of_it(tmp_path: Path) -> None:
    questions = prompts(3, seed=20)
    with EngineRun(save_family("llama", tmp_path), "reference") as run:
        first, last = counted(run)
        run.ask(questions, 1, prompt_logprobs=2)
    assert first.tokens == [sum(map(len, questions))]
    assert last.tokens == [sum(map(len, questions)) + len(questions)]
