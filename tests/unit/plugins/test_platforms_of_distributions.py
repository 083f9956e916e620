"""Discovery, probes and the choice, each with real distributions that are found through their entry points."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tessera.platform import API_LEVELS

KEYS = [
    "name", "distribution", "version", "api_levels", "shims", "score", "reason", "devices", "selected", "verdict",
    "error",
]  # fmt: skip
LEVELS = """
from tessera.cli.platforms import describe, survey, table
from tessera.plugins import Plugins, load_plugins
from tessera.plugins.levels import Api
from tessera.platform import API_LEVELS
for level in range(4):
    shims = {("platform", level - 1): lambda platform: platform} if level > 1 else {}
    api = Api({**API_LEVELS, "platform": level}, shims)
    candidates, chosen, _ = survey(load_plugins(api=api))
    (row,) = [describe(one, chosen) for one in candidates]
    print(row["shims"], row["error"])
    if row["shims"]:
        print(table([row], explain=True))
"""
SELECT = """
import sys
from tessera.errors import TesseraError
from tessera.plugins import select
for name in sys.argv[1:]:
    try:
        print(select(name or None).name)
    except TesseraError as error:
        print("refused:", error)
"""


def rows(site: Any, *arguments: str, **settings: Any) -> dict[str, dict[str, Any]]:
    done = site.run(*arguments, "platforms", "--json", **settings)
    assert (done.returncode, done.stderr) == (0, "")
    return {row["distribution"].removeprefix("tessera-fixture-"): row for row in json.loads(done.stdout)}


def test_nothing_installed(site):
    assert rows(site) == {}
    assert "pip install tessera-cpu" in site.run("platforms").stdout


def test_a_platform_as_it_should_be(site):
    row = rows(site.install("good"))["good"]
    assert list(row) == KEYS
    assert row == {
        "name": "good",
        "distribution": "tessera-fixture-good",
        "version": "1.0",
        "api_levels": dict.fromkeys(API_LEVELS, 0),
        "shims": [],
        "score": 50,
        "reason": "two chips through reference ops",
        "devices": [{"name": "chip", "index": index, "memory": 2**34} for index in (0, 1)],
        "selected": True,
        "verdict": "chosen: the highest score",
        "error": None,
    }
    table = site.run("platforms").stdout
    assert "*  good  50     tessera-fixture-good 1.0  2 x chip  two chips through reference ops" in table


def test_the_highest_score_is_chosen(site):
    found = rows(site.install("host", "good", "absent"))
    assert {name: (row["score"], row["selected"]) for name, row in found.items()} == {
        "host": (10, False),
        "good": (50, True),
        "absent": (0, False),
    }


def test_a_tie_lists_the_candidates_and_chooses_none(site):
    site.install("good", "rival", "host")
    assert not any(row["selected"] for row in rows(site).values())
    refused, named = site.run("", "rival", program=SELECT).stdout.splitlines()
    assert "'good' (tessera-fixture-good 1.0)" in refused
    assert "'rival' (tessera-fixture-rival 1.0)" in refused
    assert "'host'" not in refused
    assert named == "rival"


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("raising", "raised RuntimeError: the driver is older than the library"),
        ("crashing", "ended with SIGSEGV"),
        ("boasting", "gave the score 1000"),
        ("torch_at_load", "imports torch"),
        ("broken_import", "ModuleNotFoundError: No module named 'a_library_that_is_not_installed'"),
        ("unknown_hook", "a hook 'platform', which core does not have; did it mean platforms?"),
    ],
)
def test_what_cannot_be_asked_is_kept_and_nothing_runs_in_its_place(site, name, what):
    found = rows(site.install("host", name))
    row = found[name.replace("_", "-")]
    assert what in row["error"]
    assert row["score"] is None
    assert not any(one["selected"] for one in found.values())
    refused, named = site.run("", "host", program=SELECT).stdout.splitlines()
    assert what in refused
    assert "or choose with --platform host" in refused
    assert named == "host"


def test_a_hanging_probe_is_ended_with_all_it_started(site):
    program = """
import time
from pathlib import Path
from tessera.plugins import discover, probe
from tessera.errors import PlatformError

def lives():
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append(path.read_bytes())
        except OSError:
            continue
    return b"sleep\\x00299.125\\x00" in found

begin = time.monotonic()
try:
    probe(discover()[0].manifest, timeout=1.5)
except PlatformError as error:
    print(error)
assert time.monotonic() - begin < 10
while lives() and time.monotonic() - begin < 10:  # a process that was killed may take a moment to go
    time.sleep(0.05)
assert not lives()
"""
    done = site.install("hanging").run(program=program)
    assert (done.stdout, done.stderr) == ("its probe fixture_hanging:probe did not answer within 1.5 s\n", "")


def test_api_levels_from_the_one_before_to_ones_own(site):
    lines = site.install("leveled").run(program=LEVELS).stdout.splitlines()
    assert lines[:3] == [
        "[] it was written for level 1 of platform, core has 0; upgrade tessera-llm",
        "[] None",
        "['platform 1 as 2'] None",
    ]
    assert "chosen: the highest score; shim: platform 1 as 2" in lines[4]
    assert lines[5:] == ["[] it was written for level 1 of platform, core supports 2 and 3; upgrade the plugin"]


def test_a_name_that_two_distributions_claim_is_an_error_of_both(site):
    found = rows(site.install("good", "namesake", "host"))
    both = "platform 'good' comes from tessera-fixture-good 1.0 and tessera-fixture-namesake 1.0; uninstall one of them"
    assert [found[name]["error"] for name in ("good", "namesake", "host")] == [both, both, None]
    assert both in site.run("good", program=SELECT).stdout


def test_a_platform_that_cannot_run_here_is_refused_by_its_reason(site):
    unnamed, named = site.install("absent").run("", "absent", program=SELECT).stdout.splitlines()
    assert "No installed platform can run here. 'absent' (tessera-fixture-absent 1.0): no such chip" in unnamed
    assert "cannot run here: no such chip in this machine" in named


def test_an_unknown_name_gets_the_nearest(site):
    assert (
        "There is no platform 'goood'; there is good."
        in site.install("good", "host").run("goood", program=SELECT).stdout
    )


def test_the_environment_says_which_plugins_load(site):
    site.install("good", "host", "broken_import")
    assert set(rows(site, TESSERA_LOAD_PLUGINS="good, host")) == {"good", "host"}
    assert rows(site, TESSERA_LOAD_PLUGINS="") == {}


def test_a_module_that_imports_torch_is_refused_each_time(site):
    program = """
from tessera.plugins import load_plugins
for _ in range(2):
    print([plugin.error for plugin in load_plugins() if plugin.name == "torch_at_load"])
"""
    done = site.install("torch_at_load").run(program=program)
    said = "imports torch, which is only for what its manifest names by dotted path; import it there"
    line = f"['fixture_torch_at_load {said}']\n"
    assert done.stdout == 2 * line
