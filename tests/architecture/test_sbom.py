"""Which licences are allowed, and what an installation needs; the stage `sbom` reads the environment."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from tools.sbom.__main__ import HERE, SCOPES, cleaned, missing, table
from tools.sbom.licences import Policy
from tools.sbom.needs import CORE, SERVING, needed_for

POLICY = Policy(frozenset({"MIT", "BSD-3-Clause", "BSD License"}), {"quiet": "MIT"}, {"tool": "GPL-3.0-only"})


def component(name: str, *licenses: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "version": "1", "bom-ref": f"{name}==1", "licenses": list(licenses)}


MIT = {"license": {"id": "MIT"}}
GPL = {"license": {"id": "GPL-3.0-only"}}


@pytest.mark.parametrize(
    ("licenses", "read"),
    [
        ([MIT], ["MIT"]),
        ([{"expression": "MIT AND (BSD-3-Clause OR Zlib)"}], ["BSD-3-Clause", "MIT", "Zlib"]),
        ([{"license": {"name": "License :: OSI Approved :: BSD License"}}, MIT], ["BSD License", "MIT"]),
        (
            [{"license": {"name": "License :: OSI Approved :: Mozilla Public License 2.0 (MPL 2.0)"}}],
            ["Mozilla Public License 2.0 (MPL 2.0)"],
        ),
        ([], []),
    ],
)
def test_licences_are_read(licenses: list[dict[str, Any]], read: list[str]) -> None:
    assert POLICY.licences(component("any", *licenses)) == read


@pytest.mark.parametrize(
    ("one", "problem"),
    [
        (component("plain", MIT), None),
        (component("Quiet"), None),
        (component("tool", GPL), None),
        (component("other", GPL), "other: GPL-3.0-only is not allowed; see exceptions in licences.toml"),
        (
            component("either", {"expression": "MIT OR GPL-3.0-only"}),
            "either: GPL-3.0-only is not allowed; see exceptions in licences.toml",
        ),
        (
            component("mute"),
            "mute: its metadata names no licence; look for it, and name it under silent in licences.toml",
        ),
    ],
    ids=lambda value: value["name"] if isinstance(value, dict) else "",
)
def test_what_is_not_allowed_fails_by_name(one: dict[str, Any], problem: str | None) -> None:
    assert list(POLICY.problems([one])) == ([problem] if problem else [])


def test_what_is_pinned_and_not_installed_fails_by_name() -> None:
    lines = list(missing([component("Present_One", MIT)], "# pins\npresent-one==1\nabsent==2\n"))
    assert len(lines) == 1
    assert lines[0].startswith("absent: ")


def test_no_path_of_the_machine_is_in_the_list() -> None:
    near = {"url": "file:///a/folder", "type": "distribution"}
    far = {"url": "https://example.com", "type": "vcs"}
    ours = {**component("ours", MIT), "externalReferences": [near, far]}
    bill = {
        "components": [ours, component("pip", MIT)],
        "dependencies": [{"ref": "ours==1"}, {"ref": "pip==1"}, {"ref": "root"}],
        "metadata": {"component": {"bom-ref": "root"}},
    }
    clean = cleaned(bill, {"ours": SERVING})
    assert clean["components"] == [{**ours, "externalReferences": [far], "scope": SCOPES[SERVING]}]
    assert [one["ref"] for one in clean["dependencies"]] == ["ours==1", "root"]


def test_the_table_says_what_each_is_needed_for() -> None:
    text = table([component("b", MIT), component("A")], {"b": "audio"}, POLICY)
    assert text.splitlines()[4:] == ["| a | 1 |  | dev |", "| b | 1 | MIT | audio |"]


def test_what_serving_needs_is_told_from_extras() -> None:
    needed = needed_for(CORE)
    assert needed[CORE] == needed["torch"] == needed["fastapi"] == SERVING
    assert needed["copier"] == "plugin"
    assert needed["pytest"] == "dev"


def test_exceptions_have_reasons_and_nothing_that_serves_is_one() -> None:
    rows = tomllib.loads((HERE / "licences.toml").read_text(encoding="utf-8"))
    assert all(row["reason"] for row in rows["exceptions"].values())
    assert all(row["source"] for row in rows["silent"].values())
    needed = needed_for(CORE)
    assert [name for name in rows["exceptions"] if needed.get(name) == SERVING] == []


def test_each_row_is_of_a_distribution_that_is_pinned() -> None:
    policy = Policy.read(HERE / "licences.toml")
    pins = (Path(__file__).parents[2] / "constraints.txt").read_text(encoding="utf-8")
    assert all(f"\n{name}==" in pins for name in {*policy.silent, *policy.exceptions})
