"""Reward models by the name of their class, and what --pooler-config says of steps."""

from __future__ import annotations

import pytest

from tessera.errors import ConfigError
from tests.unit.config.test_tasks import MODEL, tasks

JUDGE = {**MODEL, "architectures": ["Qwen2ForRewardModel"]}
PROCESS = {**MODEL, "architectures": ["Qwen2ForProcessRewardModel"]}


@pytest.mark.parametrize(
    ("config", "flag", "does", "labels", "step"),
    [
        (JUDGE, None, ("token_classify", "classify"), 1, None),
        (JUDGE, {"step_tag_id": 9}, ("token_classify", "classify"), 1, 9),
        ({**PROCESS, "vocab_size": 152064}, None, ("token_classify",), 2, 151651),
        (PROCESS, {"tok_pooling_type": "step", "step_tag_id": 9}, ("token_classify",), 2, 9),
        (PROCESS, {"pooling_type": "all"}, ("token_classify",), 2, None),
    ],
)
def test_reward_models(folder, config, flag, does, labels, step):
    generates, pooler = tasks(folder(config__json=config), pooler_config=flag)
    assert not generates
    assert (pooler.tasks, len(pooler.labels), pooler.step_token) == (does, labels, step)
    assert pooler.activation == ("sigmoid" if labels == 1 else "softmax")
    assert any(str(step) in note for note in pooler.notes) is (step is not None)


def test_a_step_that_is_in_no_vocabulary(folder):
    with pytest.raises(ConfigError, match="pooler_config must name the token behind each step"):
        tasks(folder(config__json=PROCESS))
