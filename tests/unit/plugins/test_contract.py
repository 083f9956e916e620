"""A platform is checked where it is opened."""

from __future__ import annotations

import sys
from dataclasses import replace
from types import ModuleType

import pytest

from tessera.errors import PlatformError
from tessera.platform import Platform
from tessera.plugins import load_platform
from tessera.plugins.levels import API, Removed


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


API_OF_TESTS = replace(API, removed={"Platform": {"punica_wrapper": Removed("platform", 0, "adapters")}})


@pytest.mark.parametrize(
    ("path", "what"),
    [
        ("a_platform:Partial", "lacks open, which every platform must have"),
        ("a_platform:dict", "makes no tessera.platform.Platform"),
        ("a_platform:WithOldMember", "defines punica_wrapper, which Platform no longer has; adapters replaced it"),
        ("a_platform:Nowhere", "a_platform has no Nowhere"),
    ],
)
def test_what_does_not_keep_the_contract_is_one_line(path, what):
    with pytest.raises(PlatformError, match=what):
        load_platform(path, api=API_OF_TESTS)


def test_a_member_that_core_does_not_have_is_a_warning_that_names_the_near_one(caplog):
    load_platform("a_platform:WithOldMember")
    (said,) = caplog.messages
    assert said.endswith(
        ":WithOldMember defines punica_wrapper, which Platform does not have; call it _punica_wrapper if it is your own"
    )


@pytest.mark.parametrize("levels", [{"graph": 1}, {"grpah": 0}, {"graph": "0"}])
def test_a_level_that_core_does_not_support_is_refused_where_it_is_opened_too(levels):
    with pytest.raises(PlatformError, match="a_platform:Whole cannot be used"):
        load_platform("a_platform:Whole", levels)
