"""docs/models.md lists every family that answers with numbers; `python -m tools.pooling_table` writes it anew."""

from __future__ import annotations

from tessera.plugins.builtin import POOLING_MODELS, REWARD_MODELS
from tools.pooling_table import EXAMPLES, PAGE, families, page


def test_the_table_is_what_core_has() -> None:
    assert PAGE.read_text(encoding="utf-8") == page()


def test_every_architecture_is_in_it() -> None:
    assert {f"{name}{head}" for name, heads in families().items() for head in heads} == POOLING_MODELS.keys()
    assert EXAMPLES.keys() <= families().keys()


def test_reward_models_are_named() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert [name for name in REWARD_MODELS if f"`{name}`" not in text] == []
