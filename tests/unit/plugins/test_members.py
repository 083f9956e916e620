"""Members that core will never call."""

from __future__ import annotations

import pytest

from tessera.platform import AttentionBackend, Communicator, Device, GraphRunner, Kernel, ModelRunner, Platform
from tessera.plugins.contract import CONTRACTS, find_members


class Chip(Platform):
    name = "chip"
    ROWS = 4

    def open(self, index):
        return self._helper()

    def _helper(self):
        return None


class Misspelt(Chip):
    capabilites = None

    def attention_backend(self):
        return ()


class Backend(AttentionBackend):
    name = "own"

    def suports(self, spec):
        return None


class Graphs(GraphRunner):
    def on_replay(self):
        return None


class Group(Communicator):
    def hops_between(self, x):
        return x


class Runner(ModelRunner):
    @staticmethod
    def warmup():
        return None


class Norm(Kernel):
    @property
    def wanted(self):
        return None


def found(cls):
    return [(one.member, one.contract, one.instead) for one in find_members(cls)]


def test_nothing_is_said_of_overrides_private_names_and_constants():
    assert find_members(Chip) == []


@pytest.mark.parametrize(
    ("cls", "expected"),
    [
        (
            Misspelt,
            [("capabilites", "Platform", "capabilities"), ("attention_backend", "Platform", "attention_backends")],
        ),
        (Backend, [("suports", "AttentionBackend", "supports")]),
        (Graphs, [("on_replay", "GraphRunner", "replay")]),
        (Group, [("hops_between", "Communicator", "")]),
        (Runner, [("warmup", "ModelRunner", "warm_up")]),
        (Norm, [("wanted", "Kernel", "wants")]),
        (dict, []),
    ],
)
def test_what_looks_like_an_override_names_the_near_one(cls, expected):
    assert found(cls) == expected


def test_a_base_of_the_plugins_own_is_looked_at_too_and_other_bases_are_not():
    class Foreign:
        def anything(self):
            return None

    class Further(Misspelt, Foreign):
        pass

    assert found(Further) == found(Misspelt)
    assert all(f":{Misspelt.__name__} " in str(one) for one in find_members(Further))


def test_every_contract_that_plugins_subclass_is_looked_at():
    assert {cls.__name__ for cls in CONTRACTS} >= {
        "Platform",
        "AttentionBackend",
        "GraphRunner",
        "Communicator",
        "Kernel",
    }
    assert issubclass(Device, tuple(CONTRACTS))
