"""docs/plugins/surface.txt is what plugins can touch, and what was promised of it does not change unnoticed."""

from __future__ import annotations

import pytest

from tessera.platform import API_LEVELS
from tools import public_surface
from tools.contract_names import FACETS, left_out
from tools.public_surface import FILE, difference, problems, surface

BEFORE = "[platform] level 0\n\nopen(self)\n\n[graph] level 1\n\ncapture(self, key)\n"


def test_the_file_is_what_the_code_says() -> None:
    problem = difference(FILE.read_text(encoding="utf-8"), surface())
    assert problem is None, problem


def test_it_has_what_a_plugin_touches() -> None:
    assert left_out() == []
    assert set(FACETS.values()) <= set(API_LEVELS)
    text = surface()
    for line in (
        "class AttentionBackend(MixerBackend[LayerSpec])",
        "    @abstractmethod\n    open(self, index: int) -> Device",
        "    eps: float\n    offset: float = 0.0",
        "op add_norm AddNormSpec (",
        "    platforms(self) -> Sequence[Manifest]",
        "class StrictPlatform(Platform)",
        "[ops.sampling] level 0",
    ):
        assert line in text, line


def test_at_level_0_one_command_renews_it() -> None:
    said = difference(BEFORE, BEFORE.replace("open(self)", "open(self, index)"))
    assert said == (
        "the public surface changed: run python -m tools.public_surface, and put the change into CHANGELOG.md"
    )
    assert difference(BEFORE, BEFORE) is None


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ("capture(self, key)", "capture(self)", r"graph changed at level 1 \('capture\(self\)'\)"),
        ("level 1", "level 0", "the level of graph was 1 and cannot fall"),
        ("[graph] level 1", "[graphs] level 1", "the level of graph was 1 and cannot fall"),
    ],
)
def test_from_level_1_on_no_command_renews_it(old: str, new: str, what: str, monkeypatch, tmp_path, capsys) -> None:
    now = BEFORE.replace(old, new)
    with pytest.raises(AssertionError, match=what):
        raise AssertionError(difference(BEFORE, now))
    file = tmp_path / "surface.txt"
    file.write_text(BEFORE)
    monkeypatch.setattr(public_surface, "FILE", file)
    monkeypatch.setattr(public_surface, "surface", lambda: now)
    assert public_surface.main() == 1
    assert file.read_text() == BEFORE
    assert capsys.readouterr().err.startswith("error: ")


def test_a_level_that_rose_is_renewed() -> None:
    now = BEFORE.replace("level 1", "level 2").replace("capture(self, key)", "capture(self)")
    assert problems(BEFORE, now) == []
    assert "run python -m tools.public_surface" in (difference(BEFORE, now) or "")
    assert problems(BEFORE, BEFORE.replace("level 0", "level 1").replace("open(self)", "open()")) == []


def test_a_facet_of_level_0_may_go() -> None:
    assert problems(BEFORE + "\n[ops.spec] level 0\n", BEFORE) == []
