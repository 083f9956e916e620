"""Ops: each has a name and a reference in plain torch that defines it. A vendor's kernel may replace the reference. Ops
are bound once, when the model is built.

A *spec* holds the constants of one place in a model (sizes, dtypes, eps); a *hot call* takes tensors. A vendor
implements `Kernel`; `Op` is one op, `OpSet` the table of all, and `BoundOps` chooses the implementation. Core's own ops
are in tessera.ops. docs/decisions/ops.md has the rules.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from tessera.errors import PlatformError
from tessera.platform.device import Device, Reason, Tensor
from tessera.platform.explain import op_place
from tessera.platform.quantization import ActSpec, Scheme

if TYPE_CHECKING:
    from tessera.platform.collectives import Communicator


S = TypeVar("S")
HotCall = Callable[..., Any]
"""The function that a step calls: (*tensors, out=None), in the order that docs/decisions/ops.md lists."""
Packed = Mapping[str, Tensor]
"""A weight in the form that its kernel uses: prepare() produces it, and the hot call receives it."""
NOT_PROMISED: Reason = "batch invariance is not promised"


class Kernel(ABC, Generic[S]):
    """A vendor's implementation of an op. A plain function f(spec, *tensors, out=None) is a Kernel with the defaults
    below."""

    def supports(self, spec: S) -> Reason | None:
        """The reason why the kernel cannot be used at a place in the model; None if it can. Called once per place, with
        constants only. Default: it can, unless a weight is quantized."""
        return "no quantized weights" if _quantized(spec) else None

    @abstractmethod
    def bind(self, spec: S, ops: BoundOps, device: Device) -> HotCall:
        """Returns the hot call. It may use `ops.reference(name, spec)`, whose runs are counted; --no-fallback forbids
        that."""

    def prepare(self, spec: S, raw: Packed, into: Packed | None = None) -> Packed:
        """Repacks or quantizes a weight; pure and repeatable. into: an earlier result to overwrite, so that addresses
        stay the same. Default: leaves the weight as it is."""
        if into is None:
            return raw
        for name, tensor in raw.items():
            into[name].copy_(tensor)
        return into

    def wants(self, spec: S) -> ActSpec | None:
        """How the kernel wants its input quantized; core asks the op that produces it (norm, activation) to emit it so.
        Default: None, not quantized."""
        return None

    def packed_bytes(self, spec: S) -> int | None:
        """Bytes of the prepared weight, for planning, before weights are loaded. None: as many as the raw weight."""
        return None

    def batch_invariant(self, spec: S) -> Reason | None:
        """Why a row's result may have other bits if other rows, or another number of them, are computed with it; None
        if it never has. Asked with --batch-invariant only, where bind() finds BoundOps.batch_invariant set and may
        choose another way to compute. Default: it does not promise that."""
        return NOT_PROMISED


class Attached(dict[str, Tensor]):
    """A packed weight with what a feature attached to its product. The feature's wrapper of the op finds it there."""

    def __init__(self, packed: Packed, attached: Any) -> None:
        super().__init__(packed)
        self.attached = attached


@dataclass(frozen=True)
class Wrapper:
    """How a feature wraps an op. around: (spec, call) -> call. active: whether it changes anything in the launch that
    is being computed. A composite with a wrapped part runs as its parts while active() is true, and its own kernel
    otherwise. None: always active."""

    around: Callable[[Any, HotCall], HotCall]
    active: Callable[[], bool] | None = None


class FunctionKernel(Kernel[Any]):
    """A plain function as a Kernel."""

    def __init__(self, function: HotCall) -> None:
        self.function = function

    def bind(self, spec: Any, ops: BoundOps, device: Device) -> HotCall:
        return partial(self.function, spec)


def _quantized(spec: Any) -> bool:
    """Whether a spec, or one within it, has a scheme."""
    if isinstance(spec, Scheme):
        return True
    if not dataclasses.is_dataclass(spec):
        return False
    return any(_quantized(getattr(spec, field.name)) for field in dataclasses.fields(spec))


def kernel_name(kernel: Kernel[Any]) -> str:
    """The name shown to users: the kernel's class, or the function."""
    if isinstance(kernel, FunctionKernel):
        return getattr(kernel.function, "__name__", type(kernel.function).__name__)
    return type(kernel).__name__


REPLACED_OPS: Mapping[str, str] = MappingProxyType({})
"""Names of removed ops, with their replacements."""


_AS_IT_IS = FunctionKernel(lambda *_: None)

SAMPLE_TOKENS = (19, 1, 2, 0, 133)
"""Numbers of tokens that an op is tested with, unless it says otherwise: none, few, and more than fit the tiles of 64
and 128 at which kernels change their path."""


PATH_TOKENS = (3, 5, 8, 16, 32, 64, 128, 256, 520, 1030)
"""Numbers of tokens at which kernels change their path. An op is tested with them at one spec in each dtype."""


class TrialInputs(Protocol):
    """Helpers with which Op.inputs creates random arguments on the host."""

    # T.
    tokens: int
    # Prepares weights; None leaves them raw.
    ops: BoundOps | None
    # Of activations if the spec does not say.
    dtype: str
    # The generator.
    random: Any

    def normal(self, *shape: int, dtype: str = "float32", scale: float = 1.0) -> Tensor:
        """Normally distributed numbers, with standard deviation `scale`."""

    def integers(self, low: int, high: int, *shape: int) -> Tensor:
        """int32, from low to below high."""

    def uniform(self, low: float, high: float) -> Tensor:
        """[tokens] float32."""

    def weight(self, spec: Any) -> Packed:
        """The weight of a linear layer (LinearSpec), [n, k] or [experts, n, k], in the parts of its scheme."""


@dataclass(frozen=True)
class Op(Generic[S]):
    """One op.

    A plain op has `reference(spec, *tensors, out=None)`. A composite has `parts` and `compose(spec, ops)`, which binds
    the parts and returns the hot call. An op without parts that communicates with its group has only compose. A
    reference has static shapes, reads nothing back to the host and has no Python loop over rows, so that it can run in
    a captured graph, in a trace or on a static-shape device.
    """

    name: str
    group: str
    reference: HotCall | None = None
    compose: Callable[[S, BoundOps], HotCall] | None = None
    parts: tuple[str, ...] = ()
    mutates: tuple[str, ...] = ()
    kernel: Kernel[S] | None = None
    # For a composite, the part that would emit a quantized result, and its spec.
    emits_by: Callable[[S], tuple[str, Any]] | None = None
    # For a composite, the parts that receive its input, and their specs; it wants the input as they do if all want the
    # same.
    takes_by: Callable[[S], Sequence[tuple[str, Any]]] | None = None
    # Activations have the model's dtype, which the spec does not name. If the spec names none and this is False, they
    # are float32.
    any_dtype: bool = False
    # On every device, the reference gives a row the same bits whatever other rows there are, since it only moves,
    # compares, adds and multiplies numbers, in an order of its own.
    batch_invariant: bool = False
    # What follows is for conformance. The specs to test.
    sample_specs: Callable[[], Iterator[S]] | None = None
    # The numbers of tokens to test one with.
    sample_tokens: Callable[[S], Sequence[int]] = lambda _: SAMPLE_TOKENS
    # Pairs of a spec and a number of tokens at which kernels change their path, of which only the result is compared.
    large_samples: Callable[[], Iterator[tuple[S, int]]] = lambda: iter(())
    # Random positional arguments of the hot call, on the host.
    inputs: Callable[[S, TrialInputs], tuple[Any, ...]] | None = None
    # By dtype, if tighter than tessera.testing.TOLERANCES.
    tolerances: Mapping[str, float] = field(default_factory=dict, hash=False)
    # By dtype: a spec of the size of a served model, for measuring speed. Default: the first sample.
    served_spec: Callable[[str], S] | None = None


@dataclass(frozen=True)
class OpSet:
    """The table of ops by name: core's, then those of plugins. An op declares which arguments it mutates. Hot calls
    accept a keyword `out` if they would otherwise allocate, and accept Quantized for the input of a matrix product."""

    ops: Mapping[str, Op[Any]]

    @classmethod
    def collect(cls, ops: Iterable[Op[Any]]) -> OpSet:
        """A table of these ops, in this order. Raises PlatformError if two have the same name."""
        return with_extra(cls({}), list(ops))

    def __getitem__(self, name: str) -> Op[Any]:
        if name not in self.ops:
            raise PlatformError(f"there is no op '{name}'; the ops are {', '.join(self.ops)}.")
        return self.ops[name]

    def names(self) -> list[str]:
        """All ops, in the order of the table."""
        return list(self.ops)


def replace(base: OpSet, **kernels: Kernel[Any] | HotCall) -> OpSet:
    """The table with a vendor's kernels. Raises PlatformError for an unknown op; for a removed op it names the
    replacement."""
    ops = dict(base.ops)
    for name, kernel in kernels.items():
        if name in REPLACED_OPS and name not in ops:
            raise PlatformError(f"op '{name}' no longer exists; {REPLACED_OPS[name]} replaced it.")
        ops[name] = dataclasses.replace(
            base[name], kernel=kernel if isinstance(kernel, Kernel) else FunctionKernel(kernel)
        )
    return OpSet(ops)


def with_extra(base: OpSet, ops: Sequence[Op[Any]]) -> OpSet:
    """The table with a model's or a feature's own ops added. Raises PlatformError if a name is taken."""
    whole = dict(base.ops)
    for op in ops:
        if op.name in whole:
            raise PlatformError(f"op '{op.name}' exists already.")
        whole[op.name] = op
    return OpSet(whole)


@dataclass(frozen=True)
class OpChoice:
    """The implementation that was bound for an op at one place."""

    op: str
    spec: Any
    # "native", "parts" or "reference".
    how: str
    # Why it is not native.
    reason: str = ""
    # Ops whose reference a native kernel uses.
    inside: tuple[str, ...] = ()
    # Its name if native.
    kernel: str = ""
    # What would run without the kernel.
    instead: str = ""


@dataclass(frozen=True)
class Emission:
    """An op whose result the next kernel wants quantized. reason: why it is not; None if it is."""

    op: str
    spec: Any
    emit: ActSpec
    reason: Reason | None


class BoundOps:
    """Binds ops for one device, so that the cost of dispatch is paid once and never in a step."""

    def __init__(
        self,
        ops: OpSet,
        device: Device,
        groups: Mapping[str, Communicator] | None = None,
        *,
        no_fallback: bool = False,
        wrappers: Mapping[str, Wrapper] | None = None,
        batch_invariant: bool = False,
    ) -> None:
        self.ops, self.device = ops, device
        # Using the reference is an error, also inside a kernel.
        self.no_fallback = no_fallback
        # The user wants batch invariance.
        self.batch_invariant = batch_invariant
        # Communicators by name.
        self.groups = dict(groups or {})
        # How features wrap ops, by the op's name.
        self.wrappers = dict(wrappers or {})
        # What was bound, by op and spec, like the following.
        self.choices: dict[tuple[str, Any], OpChoice] = {}
        self.emissions: dict[tuple[str, Any], Emission] = {}
        # How often each op's reference ran; a captured graph counts once, when it is captured.
        self.fallbacks: Counter[str] = Counter()
        # Ops whose reference is bound, directly or inside a kernel.
        self.referenced: set[str] = set()
        # With batch_invariant: why the implementation at a place does not promise it.
        self.variant: dict[tuple[str, Any], Reason] = {}
        self._calls: dict[tuple[str, Any], HotCall] = {}
        # Of those being bound, innermost last: the op, and the references that the kernel takes.
        self._kernels: list[tuple[str, list[str]]] = []

    def bind(self, name: str, spec: Any) -> HotCall:
        """The hot call of an op at a place. Raises PlatformError if it would be the reference and --no-fallback forbids
        that."""
        key = (name, spec)
        if key not in self._calls:
            call = self._bind(self.ops[name], spec)
            self._calls[key] = self.wrappers[name].around(spec, call) if name in self.wrappers else call
        return self._calls[key]

    def bind_emitting(self, name: str, spec: Any, emit: ActSpec | None) -> HotCall:
        """Like bind(), but with the result quantized as its consumer wants, if a kernel can emit that. spec has
        emitting()."""
        if emit is None:
            return self.bind(name, spec)
        reason = self._why_plain(name, spec.emitting(emit))
        self.emissions[name, spec] = Emission(name, spec, emit, reason)
        return self.bind(name, spec if reason is not None else spec.emitting(emit))

    def _why_plain(self, name: str, spec: Any) -> Reason | None:
        """Why an op cannot emit what its spec says."""
        op = self.ops[name]
        if op.kernel is not None:
            return op.kernel.supports(spec)
        return "no kernel" if op.emits_by is None else self._why_plain(*op.emits_by(spec))

    def wants(self, name: str, spec: Any) -> ActSpec | None:
        """How the kernel that receives an op's input wants it quantized; None if there is no such kernel."""
        op = self.ops[name]
        wrapped = name in self.wrappers or _part_wrappers(op, self.ops, self.wrappers)
        if op.kernel is not None and not wrapped and op.kernel.supports(spec) is None:
            return op.kernel.wants(spec)
        wanted = {self.wants(*part) for part in op.takes_by(spec)} if op.takes_by is not None else set()
        return wanted.pop() if len(wanted) == 1 else None

    def native(self, name: str, spec: Any) -> bool:
        """Whether a kernel of the platform computes an op at a place."""
        kernel = self.ops[name].kernel
        return kernel is not None and kernel.supports(spec) is None

    def prepare(self, name: str, spec: Any, raw: Packed, into: Packed | None = None) -> Packed:
        """The weight, prepared by the implementation that is bound at this place."""
        kernel = self.ops[name].kernel
        if kernel is not None and kernel.supports(spec) is None:
            return kernel.prepare(spec, raw, into)
        return _AS_IT_IS.prepare(spec, raw, into)

    def reference(self, name: str, spec: Any) -> HotCall:
        """The reference of an op, for a kernel that cannot handle every call; for a composite, its bound parts. Each
        run is counted. Raises PlatformError if --no-fallback forbids it."""
        op = self.ops[name]
        if op.parts:
            return self._composed(op, spec)
        if not self._kernels:
            return self._reference(op, spec, "asked for outside of a kernel's bind")
        asking, taken = self._kernels[-1]
        taken.append(name)
        return self._reference(op, spec, f"inside the kernel of '{asking}'")

    def _bind(self, op: Op[Any], spec: Any) -> HotCall:
        reason = "no kernel"
        if op.kernel is not None:
            reason = op.kernel.supports(spec) or ""
            wrappers = _part_wrappers(op, self.ops, self.wrappers)
            # With batch_invariant, or a row's bits would depend on which others are wrapped.
            always = any(wrapper.active is None for wrapper in wrappers) or (self.batch_invariant and wrappers)
            if not reason and not always:
                native = self._native(op, op.kernel, spec)
                return _parts_while_active(wrappers, self._composed(op, spec), native) if wrappers else native
            reason = reason or "a part is wrapped"
        self.choices[op.name, spec] = OpChoice(op.name, spec, _without_kernel(op), reason)
        return self._composed(op, spec) if op.parts else self._reference(op, spec, reason)

    def _native(self, op: Op[Any], kernel: Kernel[Any], spec: Any) -> HotCall:
        self._note_variant(op.name, spec, kernel.batch_invariant)
        taken: list[str] = []
        self._kernels.append((op.name, taken))
        try:
            call = kernel.bind(spec, self, self.device)
        finally:
            self._kernels.pop()
        inside = tuple(dict.fromkeys(taken))
        self.choices[op.name, spec] = OpChoice(
            op.name, spec, "native", inside=inside, kernel=kernel_name(kernel), instead=_without_kernel(op)
        )
        return call

    def _composed(self, op: Op[Any], spec: Any) -> HotCall:
        assert op.compose is not None, op.name
        return op.compose(spec, self)

    def _reference(self, op: Op[Any], spec: Any, reason: str) -> HotCall:
        if self.no_fallback:
            raise PlatformError(
                f"op '{op.name}' ({op_place(spec)}) would run on the reference ({reason}), which --no-fallback "
                "forbids; give it a kernel, or remove the flag."
            )
        name = op.name
        self.referenced.add(name)
        self._note_variant(name, spec, lambda _: None if op.batch_invariant else "the reference does not promise it")
        if op.compose is not None:
            call = op.compose(spec, self)
        else:
            assert op.reference is not None, name
            call = partial(op.reference, spec)

        def counted(*tensors: Any, **keywords: Any) -> Any:
            self.fallbacks[name] += 1
            return call(*tensors, **keywords)

        return counted

    def _note_variant(self, name: str, spec: Any, promise: Callable[[Any], Reason | None]) -> None:
        reason = promise(spec) if self.batch_invariant else None
        if reason is not None:
            self.variant[name, spec] = reason


def _part_wrappers(op: Op[Any], ops: OpSet, wrappers: Mapping[str, Wrapper]) -> list[Wrapper]:
    """Of a composite's parts, at any depth."""
    direct = [wrappers[part] for part in op.parts if part in wrappers]
    return direct + [wrapper for part in op.parts for wrapper in _part_wrappers(ops[part], ops, wrappers)]


def _parts_while_active(wrappers: Sequence[Wrapper], parts: HotCall, native: HotCall) -> HotCall:
    """Calls the parts while a wrapper is active, else the kernel."""
    conditions = [wrapper.active for wrapper in wrappers]

    def call(*tensors: Any, **keywords: Any) -> Any:
        wrapped = any(active is None or active() for active in conditions)
        return (parts if wrapped else native)(*tensors, **keywords)

    return call


def _without_kernel(op: Op[Any]) -> str:
    return "parts" if op.parts else "reference"
