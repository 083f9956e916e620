"""Opens the chosen platform in the process that executes, and checks its classes for members that core will never call:
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
    Arena,
    AttentionBackend,
    Communicator,
    Device,
    EngineFeature,
    FeatureState,
    GraphRunner,
    Kernel,
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
        Kernel: "ops.core",
        ShapePolicy: "launch",
        Resource: "launch",
    }
)
"""Classes that plugins subclass, each with the facet it is of."""

NEAR_METHOD, NEAR_CONSTANT = 0.7, 0.85
"""How alike a name must be to one of the contract's; a class may have constants of its own."""


@dataclass(frozen=True)
class Finding:
    """A member that is of no use where it stands. where: the class that has it. contract: what it was to be a member
    of. removed: it was one once, which is an error; else it is none, which is a warning. instead: what replaced a
    removed one, or the nearest that there is, "" where none is near."""

    where: str
    member: str
    contract: str
    removed: bool
    instead: str = ""

    def __str__(self) -> str:
        if self.removed:
            return (
                f"{self.where} defines {self.member}, which {self.contract} no longer has; {self.instead} replaced it"
            )
        hint = f"did it mean {self.instead}?" if self.instead else f"call it _{self.member} if it is your own"
        return f"{self.where} defines {self.member}, which {self.contract} does not have; {hint}"


def find_members(cls: type, api: Api = API, levels: Mapping[str, int] | None = None) -> list[Finding]:
    """What is wrong with the members of a class, inherited ones too; nothing for a class that is under no contract.

    levels: that its plugin was written for; facets that are not in it are core's. What was written for the level before
    has members that only its shim knows, so unknown ones are not looked for there.
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
    """Public names that the plugin's own classes define, each with the class."""
    owners: dict[str, type] = {}
    for one in cls.__mro__:
        if issubclass(one, contract) and not _is_cores(one):
            for name in vars(one):
                if not name.startswith("_"):
                    owners.setdefault(name, one)
    return owners


def _removed(name: str, owner: type, contract: type, api: Api, levels: Mapping[str, int]) -> Finding | None:
    replacement = replacement_of(name, contract, api, levels)
    return None if replacement is None else Finding(_place(owner), name, contract.__name__, True, replacement)


def replacement_of(name: str, contract: type, api: Api = API, levels: Mapping[str, int] | None = None) -> str | None:
    """What replaced a member that a contract no longer has, for a plugin of these levels; None where it is not gone."""
    gone = api.removed.get(contract.__name__, {}).get(name)
    if gone is None or (levels or {}).get(gone.facet, api.levels[gone.facet]) < gone.level:
        return None
    return gone.replacement


def _unknown(name: str, owner: type, cls: type, contract: type) -> Finding | None:
    known = {
        member
        for one in cls.__mro__
        if _is_cores(one)
        for member in (*vars(one), *vars(one).get("__annotations__", ()))
    }
    method = isinstance(vars(owner)[name], FunctionType | classmethod | staticmethod | property)
    near = nearest_member(name, known, method=method)
    return None if near is None else Finding(_place(owner), name, contract.__name__, False, near)


def nearest_member(name: str, known: Set[str], *, method: bool) -> str | None:
    """Of a name that a class defines, which known member it may be meant for, "" where it is like none; None where
    nothing is wrong: it is known, or a constant of the class's own."""
    if name in known:
        return None
    public = sorted(member for member in known if not member.startswith("_"))
    near = get_close_matches(name, public, n=1, cutoff=NEAR_METHOD if method else NEAR_CONSTANT)
    return "".join(near) if near or method else None


def _is_cores(cls: type) -> bool:
    return cls.__module__.partition(".")[0] == "tessera"


def _place(cls: type) -> str:
    return f"{cls.__module__}:{cls.__qualname__}"
