"""Who computes an op at each place of a model: chosen once, when the model is built."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from tessera.errors import PlatformError
from tessera.platform.ops.kernel import FunctionKernel, HotCall, Packed
from tessera.platform.ops.op import Op
from tessera.platform.ops.table import OpSet
from tessera.platform.platform import Device
from tessera.platform.quantization import ActSpec

if TYPE_CHECKING:
    from tessera.platform.collectives import Communicator

_AS_IT_IS = FunctionKernel(lambda *_: None)


@dataclass(frozen=True)
class Choice:
    """What was bound for an op at one place. how: "native", "parts" or "reference"; reason: why not native."""

    op: str
    spec: Any
    how: str
    reason: str = ""


class BoundOps:
    """Binds ops for one device: dispatch is paid here, once, and never in a step.

    groups: communicators by name. wrappers: calls put around an op by a feature, name -> (spec, call) -> call; a
    composite one of whose parts is wrapped is bound as its parts. no_fallback: the reference is an error.
    """

    def __init__(
        self,
        ops: OpSet,
        device: Device,
        groups: Mapping[str, Communicator] | None = None,
        *,
        no_fallback: bool = False,
        wrappers: Mapping[str, Callable[[Any, HotCall], HotCall]] | None = None,
    ) -> None:
        self.ops, self.device, self.no_fallback = ops, device, no_fallback
        self.groups = dict(groups or {})
        self.wrappers = dict(wrappers or {})
        self.choices: dict[tuple[str, Any], Choice] = {}
        self.fallbacks: Counter[str] = Counter()
        self._calls: dict[tuple[str, Any], HotCall] = {}

    def bind(self, name: str, spec: Any) -> HotCall:
        """The hot call of an op at a place. Raises PlatformError where it would be the reference and that is
        forbidden."""
        key = (name, spec)
        if key not in self._calls:
            call = self._bind(self.ops[name], spec)
            self._calls[key] = self.wrappers[name](spec, call) if name in self.wrappers else call
        return self._calls[key]

    def bind_emitting(self, name: str, spec: Any, emit: ActSpec | None) -> HotCall:
        """bind, with the result quantised as its consumer wants it, where a kernel can; spec has emitting()."""
        if emit is not None and self._emits(name, spec.emitting(emit)):
            return self.bind(name, spec.emitting(emit))
        return self.bind(name, spec)

    def _emits(self, name: str, spec: Any) -> bool:
        op = self.ops[name]
        if op.kernel is not None:
            return op.kernel.supports(spec) is None
        return op.emits_by is not None and self._emits(*op.emits_by(spec))

    def wants(self, name: str, spec: Any) -> ActSpec | None:
        """How the kernel that takes an op's input would have it, if it is native here."""
        op = self.ops[name]
        if op.kernel is not None and name not in self.wrappers and op.kernel.supports(spec) is None:
            return op.kernel.wants(spec)
        return self.wants(*op.takes_by(spec)) if op.takes_by is not None else None

    def prepare(self, name: str, spec: Any, raw: Packed, into: Packed | None = None) -> Packed:
        """The weight as whoever is bound for this place keeps it."""
        kernel = self.ops[name].kernel
        if kernel is not None and kernel.supports(spec) is None:
            return kernel.prepare(spec, raw, into)
        return _AS_IT_IS.prepare(spec, raw, into)

    def reference(self, name: str, spec: Any) -> HotCall:
        """The reference of an op, for a kernel that cannot do a call after all. Each run is counted."""
        call = self._reference(self.ops[name], spec)

        def counted(*tensors: Any, **keywords: Any) -> Any:
            self.fallbacks[name] += 1
            return call(*tensors, **keywords)

        return counted

    def _bind(self, op: Op[Any], spec: Any) -> HotCall:
        reason = "no kernel"
        if op.kernel is not None:
            reason = "a part is wrapped" if self._wrapped(op) else op.kernel.supports(spec) or ""
            if not reason:
                self.choices[op.name, spec] = Choice(op.name, spec, "native")
                return op.kernel.bind(spec, self, self.device)
        how = "parts" if op.parts else "reference"
        self.choices[op.name, spec] = Choice(op.name, spec, how, reason)
        if how == "reference" and self.no_fallback:
            raise PlatformError(f"op '{op.name}' would run on the reference ({reason}), which --no-fallback forbids.")
        return self._reference(op, spec)

    def _reference(self, op: Op[Any], spec: Any) -> HotCall:
        if op.compose is not None:
            return op.compose(spec, self)
        assert op.reference is not None, op.name
        return partial(op.reference, spec)

    def _wrapped(self, op: Op[Any]) -> bool:
        return any(part in self.wrappers or self._wrapped(self.ops[part]) for part in op.parts)
