"""`tessera plugin`: for those who write a platform."""

from __future__ import annotations

from types import MappingProxyType

from tessera.cli.lazy_group import LazyGroup
from tessera.cli.verbosity import verbose_option

plugin = LazyGroup(
    "plugin",
    table=MappingProxyType(
        {
            "new": ("tessera.cli.plugin.new:new", "Write the package of a new platform, which runs at once."),
            "check": ("tessera.cli.plugin.check:check", "Say what in a plugin's package breaks the contract."),
        }
    ),
    help="Write a platform's package, or check one. docs/plugins/template.md says more.",
    params=[verbose_option()],
)
