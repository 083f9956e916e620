"""Opening the platform that was chosen, in the process that executes."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Iterable, Mapping
from typing import Any

from tessera.errors import PlatformError
from tessera.platform import Platform
from tessera.plugins.api import API, Api
from tessera.plugins.levels import levels_problem
from tessera.plugins.members import find_members
from tessera.plugins.paths import load_path
from tessera.plugins.shims import apply_shims

log = logging.getLogger(__name__)


def load_platform(path: str, levels: Mapping[str, int] | None = None, api: Api = API) -> Platform:
    """The platform that the class (or factory) at a dotted path makes without arguments. levels: that it was written
    for; what they do not name is core's. Raises PlatformError for what is no Platform, lacks a method that it must
    have, defines a member that is gone, or was written for a level that core does not support."""
    levels = levels or {}
    problem = levels_problem(levels, api)
    if problem is not None:
        raise PlatformError(f"{path} cannot be used: {problem}.")
    make = load_path(path)
    if isinstance(make, type) and issubclass(make, Platform) and inspect.isabstract(make):
        lacking = ", ".join(sorted(make.__abstractmethods__))
        raise PlatformError(f"{path} lacks {lacking}, which every platform must have; define what is missing.")
    platform = make() if callable(make) else make
    if not isinstance(platform, Platform):
        raise PlatformError(
            f"{path} makes no tessera.platform.Platform; name a class that is one, or a factory of one."
        )
    check_members([platform], levels, api)
    for facet in api.behind(levels):
        log.info("%s runs through a shim: it was written for level %d of %s", path, levels[facet], facet)
    return apply_shims(platform, levels, api)


def check_members(parts: Iterable[Any], levels: Mapping[str, int] | None = None, api: Api = API) -> None:
    """Warns of members of a platform's parts that core will never call. Raises PlatformError for one that is gone."""
    for cls in dict.fromkeys(type(part) for part in parts):
        for finding in find_members(cls, api, levels):
            if finding.removed:
                raise PlatformError(f"{finding}.")
            log.warning("%s", finding)
