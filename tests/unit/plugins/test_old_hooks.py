"""Hooks and manifests of the level before."""

from __future__ import annotations

from dataclasses import replace
from types import ModuleType

from tessera.platform import Manifest, hookimpl
from tessera.plugins import Plugin, Plugins, discover
from tessera.plugins.levels import API, OldHook

OLD_HOOK = OldHook("platforms", lambda backends: lambda: [backends()])
API_1 = replace(
    API,
    levels={**API.levels, "platform": 2},
    shims={("platform", 1): lambda platform: platform},
    manifests={1: lambda manifest: replace(manifest, platform=":".join(manifest.platform.rsplit(".", 1)))},
    hooks={"backends": OLD_HOOK},
)


def discovered(api, level, path, hook):
    """What a plugin says by a hook that returns a manifest, or a list of one."""
    module = ModuleType("of_the_level_before")
    manifest = Manifest("mychip", "mychip:probe", path, {"platform": level})
    setattr(module, hook, hookimpl({"backends": lambda: manifest, "platforms": lambda: [manifest]}[hook]))
    plugins = Plugins(api)
    plugins.add(Plugin("mychip", "tessera-mychip", "1.0", module=module))
    (found,) = discover(plugins)
    return found


def test_a_hook_by_the_name_it_had_and_a_manifest_as_it_was():
    found = discovered(API_1, 1, "mychip.MyChip", "backends")
    assert (found.error, found.shims) == (None, ("platform 1 as 2",))
    assert found.manifest.platform == "mychip:MyChip"


def test_of_this_level_nothing_is_adapted():
    assert "is not a dotted path" in discovered(API_1, 2, "mychip.MyChip", "backends").error
    assert discovered(API_1, 2, "mychip:MyChip", "platforms").error is None


def test_without_the_shim_the_hook_is_unknown_and_the_level_too_old():
    bare = replace(API_1, shims={}, manifests={}, hooks={})
    assert "a hook 'backends', which core does not have" in discovered(bare, 1, "mychip.MyChip", "backends").error
    said = discovered(bare, 1, "mychip.MyChip", "platforms").error
    assert said == "it was written for level 1 of platform, core supports 2; upgrade the plugin"


def test_a_plugin_without_an_old_hook_keeps_its_module():
    module = ModuleType("of_today")

    @hookimpl
    def platforms():
        return []

    module.platforms = platforms
    plugins = Plugins(API_1)
    plugins.add(Plugin("mychip", "tessera-mychip", "1.0", module=module))
    assert list(plugins)[-1].module is module
