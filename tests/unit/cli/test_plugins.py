"""Plugins listed, left out by name, and traced, with real distributions."""

from __future__ import annotations

import json
import re

BUILTIN = {"name": "builtin", "distribution": "tessera-llm", "entry_point": "tessera.plugins.builtin"}
FAILING = """
from types import ModuleType
from tessera.platform import hookimpl
from tessera.plugins import Plugin
from tessera.plugins.loading import TracedPlugins

@hookimpl
def platforms():
    raise OSError("no licence found")

module = ModuleType("failing")
module.platforms = platforms
plugin, plugins = Plugin("failing", "dist-failing", "1.0", module=module), TracedPlugins()
plugins.add(plugin)
plugins.ask(plugin, "platforms")
"""
KEYS = ["name", "distribution", "version", "entry_point", "hooks", "left_out", "error"]


def listed(site, **variables):
    done = site.run("plugins", "--json", **variables)
    assert (done.returncode, done.stderr) == (0, "")
    rows = json.loads(done.stdout)
    assert all(list(row) == KEYS for row in rows)
    assert rows[0].items() >= BUILTIN.items()
    return {row["name"]: row for row in rows[1:]}


def traced(done):
    """What each line of the trace says, by plugin and hook."""
    lines = re.findall(r"hook (\w+) of plugin (\S+) \((.*?)\) in [\d.]+ ms: (.*)", done.stderr)
    return {(name, hook): (source, said) for hook, name, source, said in lines}


def test_every_plugin_that_was_found(site):
    found = listed(site.install("good", "extras", "broken_import", "unknown_hook"))
    assert list(found) == ["broken_import", "extras", "good", "unknown_hook"]
    assert found["good"] == {
        "name": "good",
        "distribution": "tessera-fixture-good",
        "version": "1.0",
        "entry_point": "fixture_good",
        "hooks": ["platforms"],
        "left_out": None,
        "error": None,
    }
    assert found["extras"]["hooks"] == ["commands", "extensions", "routes"]
    assert found["unknown_hook"]["hooks"] == []
    assert "did it mean platforms?" in found["unknown_hook"]["error"]
    table = site.run("plugins").stdout
    assert re.search(r"^good +tessera-fixture-good 1\.0 +fixture_good +platforms +loaded$", table, re.MULTILINE)
    assert re.search(r"^builtin +tessera-llm \S+ +tessera\.plugins\.builtin +extensions +loaded$", table, re.MULTILINE)
    assert "error: fixture_broken_import cannot be imported: ModuleNotFoundError" in table


def test_plugins_are_left_out_by_name(site):
    site.install("good", "host", "extras")
    found = listed(site, TESSERA_DISABLE_PLUGINS="good,extras", TESSERA_LOAD_PLUGINS="good,host")
    why = "TESSERA_DISABLE_PLUGINS names it"
    assert {name: (row["left_out"], row["hooks"]) for name, row in found.items()} == {
        "good": (why, []),
        "extras": (why, []),
        "host": (None, ["platforms"]),
    }
    assert listed(site, TESSERA_LOAD_PLUGINS="")["host"]["left_out"] == "TESSERA_LOAD_PLUGINS does not name it"
    platforms = json.loads(site.run("platforms", "--json", TESSERA_DISABLE_PLUGINS="good").stdout)
    assert [row["name"] for row in platforms if row["selected"]] == ["host"]
    assert site.run("greet", TESSERA_DISABLE_PLUGINS="extras").returncode == 2


def test_what_is_left_out_is_not_imported(site):
    site.install("broken_import", "good")
    assert listed(site, TESSERA_DISABLE_PLUGINS="broken_import")["broken_import"]["error"] is None


def test_a_module_of_a_configuration_is_left_out_by_its_name(site):
    program = (
        "from tessera.plugins import load_registry\nprint('shortest' in load_registry(['fixture_extras']).policies)"
    )
    variables = {"TESSERA_LOAD_PLUGINS": ""}
    assert site.install("extras").run(program=program, **variables).stdout == "True\n"
    assert site.run(program=program, TESSERA_DISABLE_PLUGINS="fixture_extras", **variables).stdout == "False\n"


def test_who_looks_for_a_name_is_told_what_is_left_out(site):
    program = "from tessera.plugins import load_registry; load_registry().policies.resolve('shortest')"
    done = site.install("extras").run(program=program, TESSERA_DISABLE_PLUGINS="extras")
    assert "tessera-fixture-extras 1.0: TESSERA_DISABLE_PLUGINS names it" in done.stderr


def test_doctor_says_what_is_left_out_and_which_name_is_nobodys(site):
    done = site.install("good", "extras").run("doctor", TESSERA_DISABLE_PLUGINS="extras,exras")
    assert "extras (tessera-fixture-extras 1.0): not loaded, TESSERA_DISABLE_PLUGINS names it" in done.stdout
    assert "problem  environment TESSERA_DISABLE_PLUGINS names 'exras', but there is no such plugin" in done.stdout


def test_each_call_of_a_hook_is_one_line(site):
    site.install("good", "boasting", "extras")
    assert traced(site.run("platforms")) == {}
    lines = traced(site.run("platforms", TESSERA_TRACE_PLUGINS="1"))
    assert lines["good", "platforms"] == ("tessera-fixture-good 1.0", "good")
    assert ("extras", "platforms") not in lines
    commands = traced(site.run("--help", TESSERA_TRACE_PLUGINS="1"))
    assert commands["extras", "commands"] == ("tessera-fixture-extras 1.0", "greet")


def test_what_a_hook_adds_to_the_registry_and_why_one_failed(site):
    program = "from tessera.plugins import load_registry; load_registry()"
    lines = traced(site.install("extras").run(program=program, TESSERA_TRACE_PLUGINS="1"))
    assert lines["extras", "extensions"] == ("tessera-fixture-extras 1.0", "FixtureForCausalLM, shortest, fixture")
    assert re.fullmatch(r"AXK2ForCausalLM, .* and \d+ more", lines["builtin", "extensions"][1])
    why = "its hook platforms failed: OSError: no licence found"
    assert traced(site.run(program=FAILING)) == {("failing", "platforms"): ("dist-failing 1.0", why)}


def test_the_trace_has_the_form_of_the_log_and_not_its_level(site):
    program = (
        "from tessera.log import set_up_logging; set_up_logging('ERROR', 'json')\n"
        "from tessera.plugins import load_registry; load_registry()"
    )
    done = site.install("extras").run(program=program, TESSERA_TRACE_PLUGINS="1")
    records = [json.loads(line) for line in done.stderr.splitlines()]
    assert [record["logger"] for record in records] == ["tessera.plugins.loading"] * 2
