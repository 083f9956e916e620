"""Loads the chosen platform in the executing process, and checks its classes for members that core will never call:
removed ones, and ones that look like an override but are not."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from difflib import get_close_matches
from types import FunctionType, MappingProxyType
from typing import Any

from tessera.errors import PlatformError
from tessera.platform import (
    RUNNER_TAKES,
    Arena,
    AttentionBackend,
    Communicator,
    Device,
    EngineFeature,
    FeatureState,
    Fetch,
    GraphRunner,
    Kernel,
    KVConnector,
    Mixer,
    ModelRunner,
    Platform,
    Resource,
    ShapePolicy,
    WorkerFeature,
)
from tessera.plugins.levels import API, Api, apply_shims, levels_problem
from tessera.plugins.paths import load_path

log = logging.getLogger(__name__)


def load_platform(path: str, levels: Mapping[str, int] | None = None, api: Api = API) -> Platform:
    """Creates the platform by calling the class (or factory) at a dotted path without arguments. levels: the API levels
    it was written for; facets not named have core's level. Raises PlatformError if the result is not a Platform, lacks
    a required method, defines a removed member, or was written for a level that core does not support."""
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
    """Warns about members of a platform's parts that core will never call. Raises PlatformError for a removed one."""
    for cls in dict.fromkeys(type(part) for part in parts):
        for finding in find_members(cls, api, levels):
            if finding.removed:
                raise PlatformError(f"{finding}.")
            log.warning("%s", finding)


def check_takes(runner: ModelRunner) -> None:
    """Raises PlatformError if a runner takes something that core does not know."""
    for name in sorted(set(runner.takes) - RUNNER_TAKES.keys()):
        raise PlatformError(f"{_place(type(runner))} {unknown_take(name)}.")


def unknown_take(name: str) -> str:
    near = get_close_matches(name, RUNNER_TAKES, n=1)
    hint = f"did it mean {near[0]}?" if near else f"there is {', '.join(RUNNER_TAKES)}"
    return f"takes '{name}', which no runner can; {hint}"


CONTRACTS: Mapping[type, str] = MappingProxyType(
    {
        Platform: "platform",
        Device: "platform",
        Arena: "platform",
        AttentionBackend: "attention",
        Mixer: "attention",
        GraphRunner: "graph",
        Communicator: "collectives",
        ModelRunner: "runner",
        EngineFeature: "runner",
        FeatureState: "runner",
        WorkerFeature: "runner",
        KVConnector: "runner",
        Fetch: "runner",
        Kernel: "ops.core",
        ShapePolicy: "launch",
        Resource: "launch",
    }
)
"""The classes that plugins subclass, each with its facet."""

NEAR_METHOD, NEAR_CONSTANT = 0.7, 0.85
"""How similar a name must be to a member of the contract; stricter for constants, since a class may have its own."""


@dataclass(frozen=True)
class MemberFinding:
    """A member that core never calls."""

    # the class that defines it
    where: str
    # its name
    member: str
    # the class that it seems to override
    contract: str
    # whether the contract once had it, which is an error; otherwise it never did, which is a warning
    removed: bool
    # the replacement of a removed member, or the closest existing one; "" if none is close
    instead: str = ""

    def __str__(self) -> str:
        if self.removed:
            return (
                f"{self.where} defines {self.member}, which {self.contract} no longer has; {self.instead} replaced it"
            )
        hint = f"did it mean {self.instead}?" if self.instead else f"call it _{self.member} if it is your own"
        return f"{self.where} defines {self.member}, which {self.contract} does not have; {hint}"


def find_members(cls: type, api: Api = API, levels: Mapping[str, int] | None = None) -> list[MemberFinding]:
    """Problems with the members of a class, including inherited ones; none if no contract applies to the class.

    levels: the API levels its plugin was written for; facets not named have core's level. A plugin written for the
    previous level has members that only its shim knows, so its unknown members are not reported.
    """
    behind = set(api.behind(levels or {}))
    found = []
    for contract in (one for one in CONTRACTS if issubclass(cls, one)):
        guess = not (behind if contract is Platform else behind & {CONTRACTS[contract]})
        found += [
            finding
            for name, owner in _own_members(cls, contract).items()
            if (
                finding := _removed(name, owner, contract, api, levels or {})
                or (guess and _unknown(name, owner, cls, contract))
            )
        ]
    return found


def _own_members(cls: type, contract: type) -> dict[str, type]:
    """Public names that the plugin's own classes define, each with its class."""
    owners: dict[str, type] = {}
    for one in cls.__mro__:
        if issubclass(one, contract) and not _is_cores(one):
            for name in vars(one):
                if not name.startswith("_"):
                    owners.setdefault(name, one)
    return owners


def _removed(name: str, owner: type, contract: type, api: Api, levels: Mapping[str, int]) -> MemberFinding | None:
    replacement = replacement_of(name, contract, api, levels)
    return None if replacement is None else MemberFinding(_place(owner), name, contract.__name__, True, replacement)


def replacement_of(name: str, contract: type, api: Api = API, levels: Mapping[str, int] | None = None) -> str | None:
    """The replacement of a member that a contract no longer has, for a plugin of these levels; None if it still has
    it."""
    gone = api.removed.get(contract.__name__, {}).get(name)
    if gone is None or (levels or {}).get(gone.facet, api.levels[gone.facet]) < gone.level:
        return None
    return gone.replacement


def _unknown(name: str, owner: type, cls: type, contract: type) -> MemberFinding | None:
    known = {
        member
        for one in cls.__mro__
        if _is_cores(one)
        for member in (*vars(one), *vars(one).get("__annotations__", ()))
    }
    method = isinstance(vars(owner)[name], FunctionType | classmethod | staticmethod | property)
    near = nearest_member(name, known, method=method)
    return None if near is None else MemberFinding(_place(owner), name, contract.__name__, False, near)


def nearest_member(name: str, members: Set[str], *, method: bool) -> str | None:
    """The known member that a defined name was probably meant to be, or "" if none is similar. None if nothing is
    wrong: the name is known, or is a constant of the class's own."""
    if name in members:
        return None
    public = sorted(member for member in members if not member.startswith("_"))
    near = get_close_matches(name, public, n=1, cutoff=NEAR_METHOD if method else NEAR_CONSTANT)
    return "".join(near) if near or method else None


def _is_cores(cls: type) -> bool:
    return cls.__module__.partition(".")[0] == "tessera"


def _place(cls: type) -> str:
    return f"{cls.__module__}:{cls.__qualname__}"
