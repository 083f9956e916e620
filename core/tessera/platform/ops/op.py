"""One op: its definition, and the kernel that a vendor put in its place."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic

from tessera.platform.ops.kernel import HotCall, Kernel, S

if TYPE_CHECKING:
    from tessera.platform.ops.binding import BoundOps


@dataclass(frozen=True)
class Op(Generic[S]):
    """A field of OpSet.

    A plain op has `reference(spec, *tensors, out=None)`; a composite has `parts` and `compose(spec, ops)`, which binds
    them and returns the hot call. An op without parts that speaks to its group has compose alone. A reference has
    static shapes, reads nothing back to the host and has no Python loop over rows, so that it may run inside a capture,
    a trace or a static-shape device. Where the clear definition cannot be so (experts), `oracle` is the clear one.
    emits_by: of a composite, the part that would emit a quantised result, and its spec; takes_by: the part that takes
    its input. sample_specs: what conformance tries.
    """

    name: str
    group: str
    reference: HotCall | None = None
    compose: Callable[[S, BoundOps], HotCall] | None = None
    parts: tuple[str, ...] = ()
    mutates: tuple[str, ...] = ()
    kernel: Kernel[S] | None = None
    oracle: HotCall | None = None
    emits_by: Callable[[S], tuple[str, Any]] | None = None
    takes_by: Callable[[S], tuple[str, Any]] | None = None
    sample_specs: Callable[[], Iterator[S]] | None = None
