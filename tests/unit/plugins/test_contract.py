"""A platform is checked where it is opened."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from tessera.errors import PlatformError
from tessera.platform import Platform
from tessera.plugins import contract, load_platform


class Whole(Platform):
    name = "whole"

    def open(self, index):
        raise NotImplementedError


class Partial(Platform):
    name = "partial"


class WithOldMember(Whole):
    def punica_wrapper(self):
        return None


@pytest.fixture(autouse=True)
def module(monkeypatch):
    module = ModuleType("a_platform")
    for made in (Whole, Partial, WithOldMember, dict):
        setattr(module, made.__name__, made)
    monkeypatch.setitem(sys.modules, "a_platform", module)


def test_a_platform_is_made():
    assert load_platform("a_platform:Whole").name == "whole"


@pytest.mark.parametrize(
    ("path", "what"),
    [
        ("a_platform:Partial", "lacks open, which every platform must have"),
        ("a_platform:dict", "makes no tessera.platform.Platform"),
        ("a_platform:WithOldMember", "defines punica_wrapper, which no longer exists; adapters replaced it"),
        ("a_platform:Nowhere", "a_platform has no Nowhere"),
    ],
)
def test_what_does_not_keep_the_contract_is_one_line(monkeypatch, path, what):
    monkeypatch.setattr(contract, "REMOVED_MEMBERS", {"punica_wrapper": "adapters"})
    with pytest.raises(PlatformError, match=what):
        load_platform(path)
