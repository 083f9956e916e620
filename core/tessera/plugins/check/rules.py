"""All rules, in the order of the files they look at."""

from __future__ import annotations

from tessera.plugins.check.imports import changed_core, foreign_imports, unsafe_code
from tessera.plugins.check.manifest import manifest
from tessera.plugins.check.members import dead_members, unknown_hooks
from tessera.plugins.check.metadata import metadata
from tessera.plugins.check.package import Finding, Package

_OF_A_FILE = (foreign_imports, unsafe_code, changed_core)
_OF_THE_PACKAGE = (metadata, dead_members, unknown_hooks, manifest)


def check(package: Package) -> list[Finding]:
    """Everything that breaks the contract, each once, by file and line."""
    found = set(package.broken)
    for source in package.sources:
        for rule in _OF_A_FILE:
            found.update(rule(source))
    for look in _OF_THE_PACKAGE:
        found.update(look(package))
    return sorted(found)
