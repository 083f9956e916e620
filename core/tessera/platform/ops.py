"""Ops: named, each defined by a reference in plain torch, each replaceable by a vendor's kernel, bound once when the
model is built.

A *spec* holds what is constant for one place in a model (sizes, dtypes, eps); a *hot call* takes tensors.
docs/decisions/ops.md is the table of all.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from tessera.errors import PlatformError
from tessera.platform.platform import Device, Reason, Tensor
from tessera.platform.quantization import ActSpec, Scheme

if TYPE_CHECKING:
    from tessera.platform.collectives import Communicator

S = TypeVar("S")
HotCall = Callable[..., Any]
Packed = Mapping[str, Tensor]
"""A weight as its kernel keeps it: prepare() makes it, the hot call takes it."""


class Quantized(NamedTuple):
    """An activation with its scales: data [T, n] in the ActSpec's dtype, scale [T, 1] or [1]; the value is data *
    scale. Accepted wherever a tensor is the input of a product."""

    data: Tensor
    scale: Tensor


class SamplingRows(NamedTuple):
    """What sampling knows of S rows, [S] each: temperature (0: greedy), top_p and min_p float32, top_k int32 (0: off),
    seed int64, and position int64, the place in its request of the token to draw."""

    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor
    seed: Tensor
    position: Tensor


class Sampled(NamedTuple):
    """tokens [S] int32. With logprobs: ids [S, 1 + k] int32 and logprobs [S, 1 + k] float32, the drawn token first, and
    its ranks [S] int32."""

    tokens: Tensor
    ids: Tensor | None = None
    logprobs: Tensor | None = None
    ranks: Tensor | None = None


class Logprobs(NamedTuple):
    """Of one token in each of S rows, and of the most likely ones: ids [S, 1 + k] int32 and logprobs [S, 1 + k]
    float32, that token first; its ranks [S] int32, 1 the most likely."""

    ids: Tensor
    logprobs: Tensor
    ranks: Tensor


class History(NamedTuple):
    """The tokens that S rows have. tokens [N, M] int32: of row rows[s] of this table the first num_tokens[s] are known,
    and of these num_prompt[s] are the prompt. rows, num_prompt, num_tokens [S] int32."""

    tokens: Tensor
    rows: Tensor
    num_prompt: Tensor
    num_tokens: Tensor


class Penalties(NamedTuple):
    """[S] float32 each: subtracted from logits of tokens that the answer has, once (presence) and for each time
    (frequency); repetition divides the positive logits of tokens that prompt or answer have, and multiplies the
    others. 0, 0 and 1 change nothing."""

    presence: Tensor
    frequency: Tensor
    repetition: Tensor


class Edits(NamedTuple):
    """E changes of one logit each. row, one of the S, and token [E] int32; value [E] float32 is added, -inf forbids.
    It holds while the row has fewer tokens than until [E] int32, and where the answer ends in the tokens of prefix
    [E, P] int32, of which -1 at the front stands for none."""

    row: Tensor
    token: Tensor
    value: Tensor
    until: Tensor
    prefix: Tensor


# ---- specs -----------------------------------------------------------------------------------------------------------
# -------------------


@dataclass(frozen=True)
class EmbeddingSpec:
    """weight[token] * scale. sharded: only rows start..start+rows of the vocabulary are here; other tokens give zeros,
    and the sum over the group is right."""

    rows: int
    n: int
    dtype: str
    start: int = 0
    sharded: bool = False
    scale: float = 1.0


@dataclass(frozen=True)
class LinearSpec:
    """y[T, n] = x[T, k] W^T + b. experts: W is [experts, n, k]."""

    n: int
    k: int
    dtype: str
    scheme: Scheme | None = None
    bias: bool = False
    experts: int = 0


@dataclass(frozen=True)
class NormSpec:
    """RMS norm over the last dimension: x / sqrt(mean(x^2) + eps) * (weight + offset), in float32. emit: give the
    result quantised so."""

    n: int
    dtype: str
    eps: float
    offset: float = 0.0
    emit: ActSpec | None = None

    def emitting(self, emit: ActSpec) -> NormSpec:
        return dataclasses.replace(self, emit=emit)


@dataclass(frozen=True)
class LayerNormSpec:
    """Layer norm over the last dimension: (x - mean) / sqrt(variance + eps) * weight + bias, in float32."""

    n: int
    dtype: str
    eps: float


@dataclass(frozen=True)
class AddNormSpec:
    """x is summed over the group `reduce` (None: it is whole), times `multiplier` added to the residual, the sum
    normed. Without a residual the multiplier does nothing."""

    norm: NormSpec
    reduce: str | None = None
    multiplier: float = 1.0

    def emitting(self, emit: ActSpec) -> AddNormSpec:
        return dataclasses.replace(self, norm=self.norm.emitting(emit))


@dataclass(frozen=True)
class AddLayerNormSpec:
    """x is summed over the group `reduce`, the residual added, the sum normed."""

    norm: LayerNormSpec
    reduce: str | None = None


@dataclass(frozen=True)
class NormAddSpec:
    """x is summed over the group `reduce`, normed, and added to the residual."""

    norm: NormSpec
    reduce: str | None = None


@dataclass(frozen=True)
class QKNormSpec:
    """RMS norms of queries and of keys, each over its whole projection: of x [T, q + 2 k] here, queries, keys and
    values, the mean square is taken over the group `reduce` (None: all of them are here)."""

    q: int
    k: int
    dtype: str
    eps: float
    reduce: str | None = None


@dataclass(frozen=True)
class NormLinearSpec:
    norm: AddNormSpec
    linear: LinearSpec


@dataclass(frozen=True)
class RotarySpec:
    """Rotary embedding of the first `dim` elements of each head. style "half" pairs i with i + dim/2, "pairs" 2i with
    2i + 1."""

    head_dim: int
    dim: int
    style: str = "half"


@dataclass(frozen=True)
class GateSpec:
    """act(x[:, :n]) * x[:, n:]. activation: "silu", "gelu" or "gelu_tanh"."""

    n: int
    dtype: str
    activation: str = "silu"
    emit: ActSpec | None = None

    def emitting(self, emit: ActSpec) -> GateSpec:
        return dataclasses.replace(self, emit=emit)


@dataclass(frozen=True)
class ActivationSpec:
    """act(x). activation: as GateSpec has it."""

    n: int
    dtype: str
    activation: str


@dataclass(frozen=True)
class AddSpec:
    n: int
    dtype: str


@dataclass(frozen=True)
class SoftCapSpec:
    """x * scale, then held between -cap and cap by a tangent: tanh(x / cap) * cap, in float32. cap 0: none."""

    n: int
    dtype: str
    cap: float = 0.0
    scale: float = 1.0


@dataclass(frozen=True)
class GatedMLPSpec:
    gate_up: LinearSpec
    gate: GateSpec
    down: LinearSpec


@dataclass(frozen=True)
class MLPSpec:
    up: LinearSpec
    activation: ActivationSpec
    down: LinearSpec


@dataclass(frozen=True)
class RouteSpec:
    """Softmax over experts, the top_k largest; renormalise: their weights sum to 1."""

    experts: int
    top_k: int
    renormalise: bool = True


@dataclass(frozen=True)
class ExpertsSpec:
    """Gated MLPs of `experts` experts here, numbers first..first+experts of all; a token's result is the weighted sum
    over its experts that are here."""

    gate_up: LinearSpec
    gate: GateSpec
    down: LinearSpec
    top_k: int
    first: int = 0


@dataclass(frozen=True)
class MoESpec:
    router: LinearSpec
    route: RouteSpec
    experts: ExpertsSpec


@dataclass(frozen=True)
class QuantizeSpec:
    n: int
    dtype: str
    emit: ActSpec


@dataclass(frozen=True)
class SampleSpec:
    """greedy: every row takes its largest logit. filters: some row asks for top_k, top_p or min_p. logprobs:
    alternatives reported a row; -1 none."""

    vocab: int
    greedy: bool = False
    filters: bool = False
    logprobs: int = -1


@dataclass(frozen=True)
class LogprobsSpec:
    """logprobs: alternatives reported a row."""

    vocab: int
    logprobs: int


@dataclass(frozen=True)
class MaskLogitsSpec:
    vocab: int


@dataclass(frozen=True)
class EditLogitsSpec:
    """prefix: tokens that edits may have in their prefix."""

    vocab: int
    prefix: int = 0


@dataclass(frozen=True)
class PenaliseSpec:
    vocab: int


@dataclass(frozen=True)
class LogitsSampleSpec:
    """head: the rows of the vocabulary here; gather: the group that has the others; cap: soft cap of the logits; scale:
    multiplies them."""

    head: LinearSpec
    sample: SampleSpec
    gather: str | None = None
    cap: float = 0.0
    scale: float = 1.0


# ---- op, kernel, table
# ------------------------------------------------------------------------------------------------------------------


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


class Kernel(ABC, Generic[S]):
    """What a vendor supplies for an op; a bare function f(spec, *tensors, out=None) is a Kernel with these defaults."""

    def supports(self, spec: S) -> Reason | None:
        """Sees constants only; asked once a place. Default: yes."""
        return None

    @abstractmethod
    def bind(self, spec: S, ops: BoundOps, device: Device) -> HotCall:
        """The hot call. `ops.reference(name, spec)` is the reference, counted each time it runs."""

    def prepare(self, spec: S, raw: Packed, into: Packed | None = None) -> Packed:
        """Repack or quantise; pure and repeatable. `into`: write into what stands, so addresses stay. Default: as it
        is."""
        if into is None:
            return raw
        for name, tensor in raw.items():
            into[name].copy_(tensor)
        return into

    def wants(self, spec: S) -> ActSpec | None:
        """Its input quantised so; the producer (norm, activation) is asked to emit it. Default: no."""
        return None

    def packed_bytes(self, spec: S) -> int | None:
        """Bytes of the prepared weight, without weights, for planning. None: as the raw one."""
        return None

    def workspace(self, spec: S, max_tokens: int) -> int:
        return 0


class TunedKernel(Kernel[S]):
    """An optional ability: a kernel that measures shapes at warm-up and keeps the result as data. Core does not use it
    yet."""

    @abstractmethod
    def tune(self, spec: S, shapes: Sequence[int], store: Mapping[str, bytes]) -> None: ...


class FunctionKernel(Kernel[Any]):
    """A bare function as a Kernel."""

    def __init__(self, function: HotCall) -> None:
        self.function = function

    def bind(self, spec: Any, ops: BoundOps, device: Device) -> HotCall:
        return partial(self.function, spec)


@dataclass(frozen=True)
class OpSet:
    """One field an op, by group. Hot calls name what they mutate, take a keyword `out` wherever they would allocate,
    and accept Quantized where a tensor is the input of a product. `extra`: ops a model or a feature brings, each with
    its reference."""

    # core
    embedding: Op[EmbeddingSpec]
    linear: Op[LinearSpec]
    rms_norm: Op[NormSpec]
    rotary: Op[RotarySpec]
    gate: Op[GateSpec]
    add_norm: Op[AddNormSpec]
    norm_linear: Op[NormLinearSpec]
    gated_mlp: Op[GatedMLPSpec]
    layer_norm: Op[LayerNormSpec]
    activation: Op[ActivationSpec]
    add: Op[AddSpec]
    add_layer_norm: Op[AddLayerNormSpec]
    norm_add: Op[NormAddSpec]
    qk_norm: Op[QKNormSpec]
    mlp: Op[MLPSpec]
    soft_cap: Op[SoftCapSpec]
    # quant
    quantize: Op[QuantizeSpec]
    # moe
    route: Op[RouteSpec]
    experts: Op[ExpertsSpec]
    moe: Op[MoESpec]
    # sampling
    logprobs: Op[LogprobsSpec]
    mask_logits: Op[MaskLogitsSpec]
    edit_logits: Op[EditLogitsSpec]
    penalise: Op[PenaliseSpec]
    sample: Op[SampleSpec]
    logits_sample: Op[LogitsSampleSpec]
    extra: Mapping[str, Op[Any]] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Op[Any]:
        if name in self.extra:
            return self.extra[name]
        op = getattr(self, name, None)
        if not isinstance(op, Op):
            raise PlatformError(f"there is no op '{name}'; the ops are {', '.join(self.names())}.")
        return op

    def names(self) -> list[str]:
        return [f.name for f in dataclasses.fields(self) if f.name != "extra"] + list(self.extra)


REPLACED_OPS: Mapping[str, str] = MappingProxyType({})
"""Names that ops had, and what replaced them."""


def replace(base: OpSet, **kernels: Kernel[Any] | HotCall) -> OpSet:
    """The table with a vendor's kernels in it. Raises PlatformError for a name that is no op, with what replaced it."""
    fields: dict[str, Op[Any]] = {}
    extra = dict(base.extra)
    for name, kernel in kernels.items():
        if name in REPLACED_OPS:
            raise PlatformError(f"op '{name}' no longer exists; {REPLACED_OPS[name]} replaced it.")
        op = dataclasses.replace(base[name], kernel=kernel if isinstance(kernel, Kernel) else FunctionKernel(kernel))
        (extra if name in extra else fields)[name] = op
    return dataclasses.replace(base, **fields, extra=extra)


def with_extra(base: OpSet, ops: Sequence[Op[Any]]) -> OpSet:
    """The table with a model's or a feature's own ops. Raises PlatformError where a name is taken."""
    for op in ops:
        if op.name in base.names():
            raise PlatformError(f"op '{op.name}' exists already.")
    return dataclasses.replace(base, extra={**base.extra, **{op.name: op for op in ops}})


# ---- binding ---------------------------------------------------------------------------------------------------------
# -------------------


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


_AS_IT_IS = FunctionKernel(lambda *_: None)
