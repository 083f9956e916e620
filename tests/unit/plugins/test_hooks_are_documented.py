"""Each hook has its heading, with the names of its arguments, and says when it fires."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from tessera.hookspecs import Hooks
from tessera.plugins.registry import Registry

PAGE = (Path(__file__).parents[3] / "docs" / "plugins" / "hooks.md").read_text(encoding="utf-8")
HOOKS = [function for name, function in vars(Hooks).items() if not name.startswith("_")]


@pytest.mark.parametrize("hook", HOOKS, ids=lambda hook: hook.__name__)
def test_the_page_has_the_hook(hook):
    arguments = [name for name in inspect.signature(hook).parameters if name != "self"]
    section = PAGE.partition(f"\n## {hook.__name__}({', '.join(arguments)})\n")[2].partition("\n## ")[0]
    assert section.strip().startswith("Called ")
    assert inspect.getdoc(hook).startswith("Called ")


def test_the_page_has_no_other_hook():
    assert PAGE.count("\n## ") == len(HOOKS)


def test_the_page_has_every_table_of_the_registry():
    tables = [name for name, value in vars(Registry("anyone")).items()]
    assert tables
    assert all(f"| `registry.{name}` |" in PAGE for name in tables)
