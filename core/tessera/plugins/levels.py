"""API levels: what core promises to plugins, for each facet separately. Shims make a platform, kernel or hook written
for the previous level look like the current one. Calls between a plugin's own objects are not changed."""

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
    """A member that a contract lost at a level of a facet, and its replacement. A plugin written for an earlier level
    still has it, for a shim to call."""

    facet: str
    level: int
    replacement: str


@dataclass(frozen=True)
class OldHook:
    """A hook of the previous level. name: the hook that replaced it; adapt: turns a plugin's function into one for the
    new hook."""

    name: str
    adapt: Callable[[Callable[..., Any]], Callable[..., Any]]


@dataclass(frozen=True)
class Api:
    """What core promises to plugins, and how plugins of the previous level run."""

    # core's own, by facet and op group
    levels: Mapping[str, int]
    # by facet and the level a plugin was written for, functions that make its platform look like one of the next level;
    # a level without one is not supported
    shims: Mapping[tuple[str, int], Callable[[Platform], Platform]] = field(default_factory=dict)
    # the same for results of the hook `platforms`, by the level of the facet "platform"
    manifests: Mapping[int, Callable[[Manifest], Manifest]] = field(default_factory=dict)
    # hooks of the previous level, by name
    hooks: Mapping[str, OldHook] = field(default_factory=dict)
    # by contract ("Platform", "Kernel", ...) and member
    removed: Mapping[str, Mapping[str, Removed]] = field(default_factory=dict)
    # replacements of hooks, by name
    removed_hooks: Mapping[str, str] = field(default_factory=dict)

    def supported(self, facet: str) -> tuple[int, ...]:
        """The levels of a facet that core can run, in order."""
        core = self.levels[facet]
        return (core - 1, core) if (facet, core - 1) in self.shims else (core,)

    def behind(self, levels: Mapping[str, int]) -> list[str]:
        """The facets of a plugin that run through a shim."""
        return [facet for facet, level in levels.items() if level == self.levels.get(facet, level) - 1]


API = Api(API_LEVELS, removed_hooks=REMOVED_HOOKS)
"""Core's own API. Its shims, one for each facet that has a level of 2 or more, are listed next to this."""


def levels_problem(written_for: object, api: Api) -> str | None:
    """The first problem with a manifest's levels, or None."""
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
    """The platform adapted to core's levels; unchanged if it was written for them. levels: those it was written for,
    which core must support."""
    for facet in api.behind(levels):
        platform = api.shims[facet, levels[facet]](platform)
    return platform


def adapted(part: T, contract: type, **members: Callable[..., Any]) -> T:
    """A platform's part (or the platform) with some members replaced: each is called with the old part, then core's
    arguments. contract: its class in tessera.platform. Members that the part does not override keep core's default."""
    namespace: dict[str, Any] = {"_older": part}
    for name, standing in inspect.getmembers(contract):
        if name.startswith("_"):
            continue
        if not inspect.isfunction(standing):
            namespace[name] = property(attrgetter(f"_older.{name}"))
        elif getattr(type(part), name, None) is not standing:
            namespace[name] = _handing(part, name)
    for name in (name for base in contract.__mro__ for name in inspect.get_annotations(base)):
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
    """The op set that ops() of the previous level returns, adapted to the current one. kernels: what adapts
    each, by current op name. renamed: old names of ops to the current ones."""
    old_names = [dataclasses.replace(reference[new], name=old) for old, new in renamed.items()]
    given = platform.ops(with_extra(reference, old_names))
    found = {name: given[name].kernel for name in reference.names()}
    found |= {new: given[old].kernel for old, new in renamed.items() if given[old].kernel is not None}
    wrappers = {**dict.fromkeys(renamed.values(), _as_it_is), **kernels}
    known = (*renamed, *reference.names())
    whole = with_extra(reference, [given[name] for name in given.names() if name not in known])
    return replace(
        whole,
        **{name: wrappers.get(name, _as_it_is)(kernel) for name, kernel in found.items() if kernel is not None},
    )


def _as_it_is(kernel: Kernel[Any]) -> Kernel[Any]:
    return kernel


class AdaptedKernel(Kernel[Any]):
    """A kernel of the previous level. older: converts a current spec to one it knows, or returns the reason why it
    cannot. renamed: old names of ops to the current ones, for ops that the kernel binds itself."""

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
    """The same bound ops under their old names."""

    def __init__(self, ops: BoundOps, renamed: Mapping[str, str]) -> None:
        vars(self).update(vars(ops))  # share state, so that what one binds and counts is visible in the other
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
    """The module with hooks of the previous level replaced by current ones; unchanged if it has none."""
    mark = f"{PROJECT}_impl"
    old = {name: hook for name, hook in hooks.items() if hasattr(getattr(module, name, None), mark)}
    if not old:
        return module
    made = ModuleType(module.__name__, module.__doc__)
    vars(made).update({name: value for name, value in vars(module).items() if name not in old})
    for name, hook in old.items():
        setattr(made, hook.name, hookimpl(hook.adapt(getattr(module, name))))
    return made
