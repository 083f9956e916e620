"""Whether what a plugin's distribution requires is here, in the versions that it requires."""

from __future__ import annotations

import platform
from importlib.metadata import Distribution, PackageNotFoundError, version

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet

from tessera._version import __version__

CORE = "tessera-llm"
"""The distribution of core, whose version is that of the code that runs."""


def requirements_problem(distribution: Distribution) -> str | None:
    """The first thing that is missing or of a wrong version, and what to do; None where all is there. What cannot be
    read is left to the import to say."""
    try:
        pythons = SpecifierSet(str(distribution.metadata.json.get("requires_python", "")))
        needs = [Requirement(line) for line in distribution.requires or ()]
    except (InvalidRequirement, InvalidSpecifier):
        return None
    here = platform.python_version()
    if not pythons.contains(here, prereleases=True):
        return f"it needs Python {pythons}, and this is {here}; install one of its releases for this Python"
    return next((problem for need in needs if (problem := _problem(need)) is not None), None)


def _problem(need: Requirement) -> str | None:
    if need.marker is not None and not need.marker.evaluate({"extra": ""}):
        return None
    wanted = f"{need.name}{need.specifier}"
    try:
        found = __version__ if need.name == CORE else version(need.name)
    except PackageNotFoundError:
        return f"it needs {wanted}, which is not installed; pip install '{wanted}'"
    if need.specifier.contains(found, prereleases=True):
        return None
    return f"it needs {wanted}, and {found} is installed; pip install '{wanted}', or another release of the plugin"
