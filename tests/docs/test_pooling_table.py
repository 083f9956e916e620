"""docs/models.md lists every family that answers with numbers, as `python -m tools.pooling_table --write` writes it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tessera.plugins.builtin import POOLING_MODELS, REWARD_MODELS
from tools.pooling_table import EXAMPLES, PAGE, families, main, page, table


def test_the_table_is_what_core_has() -> None:
    assert PAGE.read_text(encoding="utf-8") == page()


def test_it_is_written_on_demand_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "models.md"
    copy.write_text(PAGE.read_text(encoding="utf-8").replace("| `Bert` |", "| old |"), encoding="utf-8")
    monkeypatch.setattr("tools.pooling_table.PAGE", copy)
    with pytest.raises(SystemExit):
        main(["--help"])
    capsys.readouterr()
    assert main([]) == 0
    assert capsys.readouterr().out == table()
    assert "| old |" in copy.read_text(encoding="utf-8")
    assert main(["--write"]) == 0
    assert copy.read_text(encoding="utf-8") == PAGE.read_text(encoding="utf-8")


def test_every_architecture_is_in_it() -> None:
    assert {f"{name}{head}" for name, heads in families().items() for head in heads} == POOLING_MODELS.keys()
    assert EXAMPLES.keys() <= families().keys()


def test_reward_models_are_named() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert [name for name in REWARD_MODELS if f"`{name}`" not in text] == []
