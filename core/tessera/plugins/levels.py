"""API levels, of each facet on its own: what core promises to plugins, and shims, which make a platform, a kernel or
hooks written for the level before look like today's. What a plugin's own objects call of each other stays as it was."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from operator import attrgetter
from types import ModuleType
from typing import Any, TypeVar

from tessera.hookspecs import PROJECT, REMOVED_HOOKS
from tessera.platform import (
    API_LEVELS,
    BoundOps,
    Device,
    Kernel,
    Manifest,
    OpSet,
    Packed,
    Platform,
    Reason,
    replace,
    with_extra,
)
from tessera.platform.hooks import hookimpl
from tessera.platform.ops import HotCall
from tessera.platform.quantization import ActSpec
from tessera.plugins.registry import level_problem


@dataclass(frozen=True)
class Removed:
    """A member that a contract had until a level of a facet, and what replaced it. What was written for a level before
    still has it, for a shim to call."""

    facet: str
    level: int
    replacement: str


@dataclass(frozen=True)
class OldHook:
    """A hook of the level before. name: of the hook that replaced it; adapt: makes of a plugin's function one for
    that."""

    name: str
    adapt: Callable[[Callable[..., Any]], Callable[..., Any]]


@dataclass(frozen=True)
class Api:
    """levels: core's own, by facet and op group.

    shims: by facet and the level that a plugin was written for, what makes its platform look like one of the level
    after; without one that level is not supported. manifests: likewise for what the hook `platforms` returns, by the
    level of the facet "platform" that it was written for. hooks: hooks of the level before, by name. removed: by
    contract ("Platform", "Kernel", ...) and member. removed_hooks: by name, what replaced it.
    """

    levels: Mapping[str, int]
    shims: Mapping[tuple[str, int], Callable[[Platform], Platform]] = field(default_factory=dict)
    manifests: Mapping[int, Callable[[Manifest], Manifest]] = field(default_factory=dict)
    hooks: Mapping[str, OldHook] = field(default_factory=dict)
    removed: Mapping[str, Mapping[str, Removed]] = field(default_factory=dict)
    removed_hooks: Mapping[str, str] = field(default_factory=dict)

    def supported(self, facet: str) -> tuple[int, ...]:
        """Levels of a facet that can run, in order."""
        core = self.levels[facet]
        return (core - 1, core) if (facet, core - 1) in self.shims else (core,)

    def behind(self, levels: Mapping[str, int]) -> list[str]:
        """Of a plugin's facets those that run through a shim."""
        return [facet for facet, level in levels.items() if level == self.levels.get(facet, level) - 1]


API = Api(API_LEVELS, removed_hooks=REMOVED_HOOKS)
"""Core's own. Its shims, one for each facet of a level from 2 on, stand beside this."""


def levels_problem(written_for: object, api: Api) -> str | None:
    """The first problem among a manifest's levels, or None."""
    if not isinstance(written_for, Mapping):
        return "the levels of its manifest must be a mapping from facets to whole numbers; correct the plugin"
    for facet, level in written_for.items():
        if facet not in api.levels:
            near = get_close_matches(str(facet), api.levels, n=1)
            hint = f"did it mean {near[0]}?" if near else f"core has {', '.join(api.levels)}"
            return f"it names the facet '{str(facet)[:40]}', which core does not have; {hint}"
        problem = level_problem(facet, level, api.supported(str(facet)))
        if problem is not None:
            return problem
    return None


T = TypeVar("T")


def apply_shims(platform: Platform, levels: Mapping[str, int], api: Api) -> Platform:
    """The platform as core's levels have it; itself where it was written for these. levels: that it was written for,
    which core supports."""
    for facet in api.behind(levels):
        platform = api.shims[facet, levels[facet]](platform)
    return platform


def adapted(part: T, contract: type, **members: Callable[..., Any]) -> T:
    """A platform's part (or the platform) with other members: each is called with the old part, then what core gives.
    contract: the class of tessera.platform that it is of. What it leaves at core's default stays there."""
    namespace: dict[str, Any] = {"_older": part}
    for name, standing in inspect.getmembers(contract):
        if name.startswith("_"):
            continue
        if not inspect.isfunction(standing):
            namespace[name] = property(attrgetter(f"_older.{name}"))
        elif getattr(type(part), name, None) is not standing:
            namespace[name] = _handing(part, name)
    for name in inspect.get_annotations(contract):
        namespace[name] = property(attrgetter(f"_older.{name}"))
    namespace |= {name: _calling(part, function) for name, function in members.items()}
    made: T = type(f"Adapted{type(part).__name__}", (contract,), namespace)()
    return made


def _handing(part: Any, name: str) -> Callable[..., Any]:
    return lambda _, *arguments, **keywords: getattr(part, name)(*arguments, **keywords)


def _calling(part: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda _, *arguments, **keywords: function(part, *arguments, **keywords)


def adapted_ops(
    platform: Platform,
    reference: OpSet,
    kernels: Mapping[str, Callable[[Kernel[Any]], Kernel[Any]]],
    renamed: Mapping[str, str],
) -> OpSet:
    """What ops() of the level before gives, as of today. kernels: by today's name of an op, its adapter. renamed: names
    that ops had, each with today's."""
    old_names = [dataclasses.replace(reference[new], name=old) for old, new in renamed.items()]
    given = platform.ops(with_extra(reference, old_names))
    found = {name: given[name].kernel for name in reference.names()}
    found |= {new: given[old].kernel for old, new in renamed.items() if given[old].kernel is not None}
    adapters = {**dict.fromkeys(renamed.values(), _as_it_is), **kernels}
    known = (*renamed, *reference.names())
    whole = with_extra(reference, [given[name] for name in given.names() if name not in known])
    return replace(
        whole,
        **{name: adapters.get(name, _as_it_is)(kernel) for name, kernel in found.items() if kernel is not None},
    )


def _as_it_is(kernel: Kernel[Any]) -> Kernel[Any]:
    return kernel


class AdaptedKernel(Kernel[Any]):
    """A kernel of the level before. older: today's spec -> the spec that it knows, or why there is none. renamed: names
    that ops had, each with today's, for what it binds itself."""

    def __init__(
        self, kernel: Kernel[Any], older: Callable[[Any], Any | Reason], renamed: Mapping[str, str] | None = None
    ) -> None:
        self.kernel, self.older, self.renamed = kernel, older, dict(renamed or {})

    def supports(self, spec: Any) -> Reason | None:
        older = self.older(spec)
        return older if isinstance(older, str) else self.kernel.supports(older)

    def bind(self, spec: Any, ops: BoundOps, device: Device) -> HotCall:
        return self.kernel.bind(self.older(spec), OlderOps(ops, self.renamed) if self.renamed else ops, device)

    def prepare(self, spec: Any, raw: Packed, into: Packed | None = None) -> Packed:
        return self.kernel.prepare(self.older(spec), raw, into)

    def wants(self, spec: Any) -> ActSpec | None:
        return self.kernel.wants(self.older(spec))

    def packed_bytes(self, spec: Any) -> int | None:
        return self.kernel.packed_bytes(self.older(spec))


class OlderOps(BoundOps):
    """The same bound ops, by the names they had."""

    def __init__(self, ops: BoundOps, renamed: Mapping[str, str]) -> None:
        vars(self).update(vars(ops))  # what one binds and counts is the other's too
        self.today, self.renamed = ops, renamed

    def bind(self, name: str, spec: Any) -> HotCall:
        return self.today.bind(self.renamed.get(name, name), spec)

    def bind_emitting(self, name: str, spec: Any, emit: ActSpec | None) -> HotCall:
        return self.today.bind_emitting(self.renamed.get(name, name), spec, emit)

    def wants(self, name: str, spec: Any) -> ActSpec | None:
        return self.today.wants(self.renamed.get(name, name), spec)

    def prepare(self, name: str, spec: Any, raw: Packed, into: Packed | None = None) -> Packed:
        return self.today.prepare(self.renamed.get(name, name), spec, raw, into)

    def reference(self, name: str, spec: Any) -> HotCall:
        return self.today.reference(self.renamed.get(name, name), spec)


def adapted_module(module: ModuleType, hooks: Mapping[str, OldHook]) -> ModuleType:
    """The module with today's hooks in place of those of the level before; itself where it has none of these."""
    mark = f"{PROJECT}_impl"
    old = {name: hook for name, hook in hooks.items() if hasattr(getattr(module, name, None), mark)}
    if not old:
        return module
    made = ModuleType(module.__name__, module.__doc__)
    vars(made).update({name: value for name, value in vars(module).items() if name not in old})
    for name, hook in old.items():
        setattr(made, hook.name, hookimpl(hook.adapt(getattr(module, name))))
    return made
