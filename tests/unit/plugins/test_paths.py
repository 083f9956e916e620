"""Dotted paths."""

from __future__ import annotations

import collections

import pytest

from tessera.errors import PlatformError
from tessera.plugins import load_path


def test_the_object_at_a_path():
    assert load_path("collections:OrderedDict.fromkeys")("a") == collections.OrderedDict(a=None)


@pytest.mark.parametrize(
    ("path", "what"),
    [
        ("collections.OrderedDict", "is not a dotted path"),
        ("collections:", "is not a dotted path"),
        ("no_such_package.module:Name", "there is no module no_such_package"),
        ("collections.no_such:Name", "there is no module collections.no_such"),
        ("collections:NoSuch", "collections has no NoSuch"),
    ],
)
def test_a_wrong_path_is_one_line(path, what):
    with pytest.raises(PlatformError, match=what):
        load_path(path)


def test_an_error_of_the_module_itself_goes_through(tmp_path, monkeypatch):
    (tmp_path / "needs_more.py").write_text("import what_it_needs\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="what_it_needs"):
        load_path("needs_more:Name")
