"""What shims are made of: a platform, a kernel or a module of hooks of the level before, seen as one of core's.

What a plugin's own objects call of each other stays as it was; only core sees the adapted ones.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from operator import attrgetter
from types import ModuleType
from typing import Any, TypeVar

from tessera.hookspecs import PROJECT
from tessera.platform import BoundOps, Device, Kernel, OpSet, Packed, Platform, Reason, replace, with_extra
from tessera.platform.hooks import hookimpl
from tessera.platform.kernel import HotCall
from tessera.platform.quantization import ActSpec
from tessera.plugins.api import Api, OldHook

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
