"""The registry, commands and routes of plugins, and core's own names, which come in by the same hook."""

from __future__ import annotations

from dataclasses import replace
from types import ModuleType

import click
import pytest

from tessera.errors import ConfigError, ModelError, PlatformError
from tessera.platform import hookimpl
from tessera.plugins import Plugin, Plugins
from tessera.plugins.extensions import fill_registry, named_routes, plugin_commands
from tessera.plugins.levels import API


def plugin(name, **hooks):
    """A plugin whose module has these functions as its hooks."""
    module = ModuleType(f"module_of_{name}")
    for hook, function in hooks.items():
        setattr(module, hook, hookimpl(function))
    return Plugin(name, f"dist-{name}", "1.0", module=module)


def loaded(*given):
    plugins = Plugins()
    for one in given:
        plugins.add(one)
    return plugins


def test_core_brings_its_models_and_policies_through_the_hook():
    registry = fill_registry(loaded())
    assert registry.models.resolve("LlamaForCausalLM").startswith("tessera.models.")
    assert registry.policies.resolve("fcfs") == "tessera.scheduler.policy:FirstComeFirstServed"
    assert {entry.owner for table in registry.tables() for entry in table} == {"tessera-llm"}


def test_a_plugin_adds_names():
    def extensions(registry):
        registry.models.add("OwnForCausalLM", "own.models:Own", level=0)
        registry.ops.add("own_norm", "own.ops:OWN_NORM", level=0)

    registry = fill_registry(loaded(plugin("own", extensions=extensions)))
    assert registry.models.resolve("OwnForCausalLM") == "own.models:Own"
    assert [(entry.name, entry.owner) for entry in registry.ops] == [("own_norm", "dist-own")]


def test_a_name_twice_is_an_error_that_names_both_owners():
    def extensions(registry):
        registry.policies.add("short", "own:Short", level=0)

    with pytest.raises(PlatformError, match="'short' comes from dist-one and dist-two"):
        fill_registry(loaded(plugin("one", extensions=extensions), plugin("two", extensions=extensions)))


@pytest.mark.parametrize(
    ("path", "level", "what"),
    [
        ("own.models:Own", 1, "written for level 1 of model architecture, core has 0; upgrade tessera-llm"),
        ("own.models.Own", 0, "is not a dotted path such as package.module:Name"),
        ("own models:Own", 0, "is not a dotted path"),
        ("own:Own", -1, "must be a whole number"),
    ],
)
def test_a_wrong_level_or_path_is_an_error_of_the_plugin(path, level, what):
    def extensions(registry):
        registry.models.add("OwnForCausalLM", path, level=level)

    with pytest.raises(PlatformError, match=r"Plugin dist-own 1\.0 cannot be used") as caught:
        fill_registry(loaded(plugin("own", extensions=extensions)))
    assert what in caught.value.message


def test_a_hook_that_raises_is_an_error_of_the_plugin():
    def extensions(registry):
        raise SystemExit("no licence\nfound")

    with pytest.raises(
        PlatformError,
        match=r"Plugin dist-own 1\.0 cannot be used: its hook extensions failed: SystemExit: no licence found",
    ):
        fill_registry(loaded(plugin("own", extensions=extensions)))


def test_an_unknown_name_gets_the_nearest_and_the_plugins_that_could_not_be_loaded():
    registry = fill_registry(loaded(Plugin("lost", "dist-lost", "2.0", error="it cannot be imported")))
    with pytest.raises(ModelError, match=r"'LamaForCausalLM' is not supported; there is LlamaForCausalLM") as caught:
        registry.models.resolve("LamaForCausalLM")
    assert "dist-lost 2.0: it cannot be imported" in caught.value.message
    with pytest.raises(ConfigError, match="'zzz' is not supported; there is fair, fcfs, priority"):
        registry.policies.resolve("zzz")


def test_a_removed_hook_is_an_error_that_names_its_replacement():
    def backends():
        return []

    plugins = Plugins(replace(API, removed_hooks={"backends": "platforms"}))
    plugins.add(plugin("own", backends=backends))
    (own,) = list(plugins)[1:]
    assert own.error == "its hook 'backends' no longer exists; platforms replaced it"


def test_a_hook_with_an_argument_that_does_not_exist_is_an_error():
    (own,) = list(loaded(plugin("own", extensions=lambda registry, engine: None)))[1:]
    assert "engine" in own.error


def test_a_module_without_hooks_is_an_error():
    (own,) = list(loaded(plugin("own")))[1:]
    assert own.error == "module_of_own has no hooks; mark its functions with tessera.platform.hookimpl"


def test_commands_of_two_plugins_with_one_name():
    def commands(register):
        register(click.Command("greet"))

    found, problems = plugin_commands(loaded(plugin("one", commands=commands), plugin("two", commands=commands)))
    assert list(found) == ["greet"]
    assert problems == ["command 'greet' comes from dist-one 1.0 and from dist-two 1.0; uninstall one of them"]


def test_routes_are_those_that_were_named():
    def routes(register):
        register("echo", "own.routes:echo")
        register("other", "own.routes:other")

    plugins = loaded(plugin("own", routes=routes))
    assert named_routes(plugins, []) == []
    assert named_routes(plugins, ["other", "other"]) == ["own.routes:other"]
    with pytest.raises(ConfigError, match="no routes 'admin'; there is echo, other"):
        named_routes(plugins, ["admin"])


def test_modules_named_in_a_configuration_are_plugins_too(site):
    program = """
from tessera.plugins import load_registry
registry = load_registry(["fixture_extras"])
print(registry.models.resolve("FixtureForCausalLM"), registry.policies.resolve("shortest"))
"""
    done = site.install("extras").run(program=program, TESSERA_LOAD_PLUGINS="")
    assert done.stdout == "fixture_extras:Model fixture_extras:Shortest\n"


def test_a_format_of_a_plugin_reads_quantization_config(site):
    """Found where configuration is built too, before a model's weights are fetched."""
    program = """
from tessera.errors import ModelError
from tessera.plugins import weight_format
print(weight_format({}), weight_format({"quantization_config": {"quant_method": "fixture", "bits": 2}}))
for said in ("fixtures", 3, None):
    try:
        weight_format({"quantization_config": {"quant_method": said}})
    except ModelError as error:
        print(error)
"""
    lines = site.install("extras").run(program=program).stdout.splitlines()
    assert lines[0] == "None (\"a format of the fixture's\", {'quant_method': 'fixture', 'bits': 2})"
    assert lines[1] == ("quantization format 'fixtures' is not supported; there is fixture, and a plugin can add more.")
    assert lines[2:] == ["quantization_config in config.json is not an object with a quant_method."] * 2


def test_a_plugin_that_claims_a_name_of_core_gives_none_of_its_names(site):
    program = """
from tessera.errors import PlatformError
from tessera.plugins import Registry, load_plugins
from tessera.plugins.extensions import fill_registry
try:
    fill_registry(load_plugins())
except PlatformError as error:
    print(error)
"""
    done = site.install("claiming").run(program=program)
    assert done.stdout == (
        "model architecture 'LlamaForCausalLM' comes from tessera-llm and tessera-fixture-claiming; "
        "uninstall one of them.\n"
    )
