"""Which scheme each weight gets: the one of --quantization or of the checkpoint, if the platform accepts it and it fits
the weight's shard."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby

from torch import Tensor

from tessera.errors import ModelError, PlatformError, printable
from tessera.ops import LinearSpec
from tessera.ops.quantize import meaning, meaning_of
from tessera.platform.device import Reason
from tessera.platform.ops import BoundOps
from tessera.platform.platform import Platform
from tessera.platform.quantization import Decoding, Part, QuantSpec, Scheme, StoredWeight, WeightFormat
from tessera.quantization.blocks import joinable, with_block
from tessera.quantization.description import describe_scheme
from tessera.quantization.mixture import block_schemes
from tessera.quantization.rounding import quantised
from tessera.quantization.schemes import GROUPS, MIXTURE, candidates
from tessera.quantization.weights import Joins, NotQuantized, ProductWeight, SkippedWeight, Weights

log = logging.getLogger("tessera.quantization")


@dataclass(frozen=True)
class _Decoded:
    """A weight that is computed at load, as no kernel takes it as it is stored."""

    # to read
    part: Part
    # how it was stored, in words
    kind: str
    # why no kernel takes it so
    reason: Reason


Stored = StoredWeight | Part | Reason | _Decoded
"""Of WeightFormat.stored, or decided after it."""
PlatformAnswer = Scheme | Reason
"""Of Platform.scheme: the scheme that its kernels take in place of one, or why there is none."""


class _Negotiation:
    """What quantizing at load and a quantized checkpoint have in common."""

    def __init__(self, name: str, ask_platform: Callable[[Scheme], PlatformAnswer]) -> None:
        self.name, self._ask_platform = name, ask_platform
        self.quantised: Counter[str] = Counter()
        self.skipped: list[SkippedWeight] = []
        self.reasons: dict[str, Reason] = {}
        self._answers: dict[Scheme, PlatformAnswer] = {}

    def skip(self, weight: str, reason: Reason) -> None:
        self.skipped.append(SkippedWeight(weight, reason))

    @property
    def kv(self) -> QuantSpec | None:
        return None

    def kv_scales(self, attention: str) -> Mapping[str, Part]:
        return {}

    def answer(self, scheme: Scheme) -> PlatformAnswer:
        """The platform's, which is asked once."""
        if scheme not in self._answers:
            self._answers[scheme] = self._ask_platform(scheme)
        return self._answers[scheme]

    def _shardable(self, spec: LinearSpec, scheme: Scheme, ops: BoundOps) -> LinearSpec | None:
        """The product with the platform's scheme if a kernel supports it, else with the offered scheme, for the
        reference. None if the shard fits neither."""
        answer, kernel = self.answer(scheme), ops.ops["linear"].kernel
        if not isinstance(answer, str):
            native = replace(spec, scheme=answer)
            if _fits(native) and kernel is not None and kernel.supports(native) is None:
                return native
        plain = replace(spec, scheme=scheme)
        return plain if _fits(plain) else None

    def _why_not_native(self, spec: LinearSpec, scheme: Scheme, ops: BoundOps) -> Reason | None:
        """Why no kernel multiplies with a scheme."""
        answer, kernel = self.answer(scheme), ops.ops["linear"].kernel
        if isinstance(answer, str):
            return answer
        native = replace(spec, scheme=answer)
        if not _fits(native):
            return f"a shard of {spec.n} x {spec.k} is too small a part for the platform's scheme"
        return "no kernel" if kernel is None else kernel.supports(native)

    def _native(self, spec: LinearSpec, scheme: Scheme) -> LinearSpec:
        answer = self.answer(scheme)
        assert isinstance(answer, Scheme), "a kernel multiplies with it"
        return replace(spec, scheme=answer)

    def count_table(self, chosen: ProductWeight) -> None:
        assert chosen.spec.scheme is not None
        self.quantised[f"{describe_scheme(replace(chosen.spec.scheme, activation=None))}, to look rows up in"] += 1

    def decoded(self, weight: Part, dtype: str, module: str = "Parameter") -> Part:
        return weight

    def _count(self, spec: LinearSpec) -> None:
        assert spec.scheme is not None
        self.quantised[describe_scheme(spec.scheme)] += 1


class QuantizeAtLoad(_Negotiation):
    """Rounds the weights to a scheme of --quantization while they are loaded."""

    def choose(self, spec: LinearSpec, weight: Joins, ops: BoundOps, module: str = "Linear") -> Sequence[ProductWeight]:
        if spec.experts:
            return (self._product(spec, weight, ops, self._blocks(spec, weight[0][0], ops)),)
        (join,) = weight
        blocks = {part: self._blocks(replace(spec, n=part.shape[0]), part, ops) for part in join}
        runs = [(scheme, list(run)) for scheme, run in groupby(join, lambda part: blocks[part])]
        if len(runs) == 1:
            return (self._product(spec, weight, ops, runs[0][0]),)
        return [
            self._product(replace(spec, n=sum(part.shape[0] for part in run)), [run], ops, scheme)
            for scheme, run in runs
        ]

    def choose_table(self, spec: LinearSpec, weight: Part, ops: BoundOps) -> ProductWeight | None:
        scheme = self._blocks(spec, weight, ops)
        return None if scheme is None else self._rounded(self._native(spec, scheme), [[weight]], scheme)

    def _blocks(self, spec: LinearSpec, weight: Part, ops: BoundOps) -> Scheme | None:
        """The first scheme of blocks that the mixture has for a weight and a kernel multiplies with."""
        schemes = block_schemes(weight, spec.k) if self.name == MIXTURE else ()
        return next((scheme for scheme in schemes if self._why_not_native(spec, scheme, ops) is None), None)

    def _product(self, spec: LinearSpec, weight: Joins, ops: BoundOps, blocks: Scheme | None = None) -> ProductWeight:
        """blocks: the scheme to round to; None: a candidate without blocks."""
        if blocks is not None:
            quantized = self._native(spec, blocks)
            self._count(quantized)
            return self._rounded(quantized, weight, blocks)
        reason = f"input size {spec.k} is not divisible by any of {', '.join(map(str, GROUPS))}"
        for scheme in candidates(self.name, spec.k):
            answer = self.answer(scheme)
            if isinstance(answer, str):
                reason = answer
                continue
            shardable = self._shardable(spec, scheme, ops)
            if shardable is not None:
                self._count(shardable)
                return self._rounded(shardable, weight, scheme)
            reason = f"a shard of {spec.n} x {spec.k} is too small a part for the platform's scheme"
        self.skipped.append(SkippedWeight(_name(weight[0][0]), reason, wanted=True))
        return ProductWeight(spec, {"weight": weight})

    def _rounded(self, spec: LinearSpec, weight: Joins, scheme: Scheme) -> ProductWeight:
        """scheme: to round to, before a kernel of the platform arranges the parts as spec.scheme says."""
        return ProductWeight(spec, {"weight": weight}, partial(_round, scheme=scheme))


def _round(raw: dict[str, Tensor], scheme: Scheme) -> None:
    """Drops the original weight before the result is packed."""
    raw.update(quantised(raw.pop("weight"), scheme))


class QuantizedCheckpoint(_Negotiation):
    """Reads weights that the checkpoint has quantized. If the platform does not accept their scheme, the reference
    computes the products. form: the checkpoint's format. convert: weights that are computed at load are rounded to a
    scheme that a kernel multiplies with."""

    def __init__(
        self, name: str, form: WeightFormat, ask_platform: Callable[[Scheme], PlatformAnswer], *, convert: bool = False
    ) -> None:
        super().__init__(name, ask_platform)
        self._format, self._convert = form, convert
        self._logged: set[str] = set()

    @property
    def kv(self) -> QuantSpec | None:
        return self._format.kv

    def kv_scales(self, attention: str) -> Mapping[str, Part]:
        return self._format.kv_scales(attention)

    def choose(self, spec: LinearSpec, weight: Joins, ops: BoundOps, module: str = "Linear") -> Sequence[ProductWeight]:
        stored = {part: self._stored(spec, part, module, ops) for join in weight for part in join}
        if spec.experts:
            if len({_kind(one) for one in stored.values()}) > 1:
                reason = "the experts of a layer are stored in different formats"
                stored = {part: self._decoded(one, spec, reason) for part, one in stored.items()}
            self._refuse_different_experts(stored)
            return (self._product(spec, weight, stored, ops),)
        (join,) = weight
        runs = [list(run) for _, run in groupby(join, lambda part: _kind(stored[part]))]
        if len(runs) == 1:
            return (self._product(spec, weight, stored, ops),)
        return [self._product(replace(spec, n=sum(part.shape[0] for part in run)), [run], stored, ops) for run in runs]

    def choose_table(self, spec: LinearSpec, weight: Part, ops: BoundOps) -> ProductWeight | None:
        stored = self._format.stored(weight, "Embedding", spec.dtype)
        if not isinstance(stored, StoredWeight) or stored.decoded is None:
            return None
        answer = self.answer(stored.scheme)
        if isinstance(answer, str) or self._why_not_native(spec, stored.scheme, ops) is not None:
            return None
        return ProductWeight(replace(spec, scheme=answer), {name: [[part]] for name, part in stored.parts.items()})

    def decoded(self, weight: Part, dtype: str, module: str = "Parameter") -> Part:
        stored = self._format.stored(weight, module, dtype)
        if isinstance(stored, StoredWeight):
            stored = stored.decoded or _computed(weight, stored)
        if not isinstance(stored, Part) or stored.decoding is None:
            return weight
        self.quantised[f"{stored.decoding.stored}, decoded to {dtype}"] += 1
        return stored

    def _stored(self, spec: LinearSpec, part: Part, module: str, ops: BoundOps) -> Stored:
        """How a weight is stored; as one to be computed at load if the platform does not multiply with it as it is.
        Where a platform takes its scheme and has no kernels for products, the reference computes with it, unless the
        format says otherwise."""
        stored = self._format.stored(part, module, spec.dtype)
        if not isinstance(stored, StoredWeight):
            return stored
        asked = spec if spec.experts else replace(spec, n=part.shape[0])
        reason = self._why_not_native(asked, stored.scheme, ops)
        if reason is None:
            return stored
        if stored.decoded is None:
            if ops.ops["linear"].kernel is None and not isinstance(self.answer(stored.scheme), str):
                return stored
            stored = replace(stored, decoded=_computed(part, stored))
        return self._decoded(stored, spec, reason)

    def _decoded(self, stored: Stored, spec: LinearSpec, reason: Reason) -> Stored:
        """The same weight as one to be computed at load for this reason, if it can be."""
        if not isinstance(stored, StoredWeight) or stored.decoded is None:
            return stored
        decoding = stored.decoded.decoding
        return _Decoded(
            stored.decoded, stored.scheme.weight.dtype if decoding is None else decoding.stored, reason
        )  # fmt: skip

    def _product(self, spec: LinearSpec, weight: Joins, stored: Mapping[Part, Stored], ops: BoundOps) -> ProductWeight:
        """The product of weights of one kind. stored: of these, among others."""
        first = weight[0][0]
        quantized = _quantized(weight, stored)
        if quantized is None:
            return self._plain(spec, weight, stored, ops)
        scheme = quantized[first].scheme
        chosen = self._shardable(spec, scheme, ops)
        if chosen is None:
            raise ModelError(
                f"'{_name(first)}' ({describe_scheme(scheme)}) has a shard of {spec.n} x {spec.k}, which the groups of "
                f"the format '{self.name}' do not divide; use another --tensor-parallel-size."
            )
        self._count(chosen)
        parts = {name: [[quantized[part].parts[name] for part in join] for join in weight] for name in scheme.parts}
        return ProductWeight(chosen, parts, partial(_check_scales, name=_name(first)))

    def _plain(self, spec: LinearSpec, weight: Joins, stored: Mapping[Part, Stored], ops: BoundOps) -> ProductWeight:
        """A product of weights that are not quantized, or computed at load."""
        read, decoded = dict[Part, Part](), dict[str, Reason]()
        parts = list(dict.fromkeys(part for join in weight for part in join))
        for part in parts:
            one = stored[part]
            if isinstance(one, str) and one not in {stored[other] for other in read}:
                self.skip(_name(part), one)
            if isinstance(one, _Decoded):
                decoded[one.kind] = one.reason
            if isinstance(one, Part) and one.decoding is not None:
                decoded[one.decoding.stored] = ""
            read[part] = one.part if isinstance(one, _Decoded) else one if isinstance(one, Part) else part
        joins = [[read[part] for part in join] for join in weight]
        computed = all(isinstance(stored[part], _Decoded | Part) for part in parts)
        scheme = self._nearest(spec, ops) if self._convert and computed else None
        becomes = f"decoded to {spec.dtype}" if scheme is None else f"converted to {describe_scheme(scheme)}"
        for kind, reason in decoded.items():
            self.quantised[f"{kind}, {becomes}"] += 1
            if reason:
                self.reasons.setdefault(f"{kind}, {becomes}", reason)
        if scheme is None:
            return ProductWeight(spec, {"weight": joins})
        convert = partial(
            _convert, scheme=scheme, kind=" and ".join(decoded), name=_name(parts[0]), logged=self._logged
        )
        return ProductWeight(self._native(spec, scheme), {"weight": joins}, convert)

    def _nearest(self, spec: LinearSpec, ops: BoundOps) -> Scheme | None:
        """The scheme that loses least of those that a kernel multiplies with."""
        schemes = (scheme for name in _CONVERTED for scheme in candidates(name, spec.k))
        return next((scheme for scheme in schemes if self._why_not_native(spec, scheme, ops) is None), None)

    def _refuse_different_experts(self, stored: Mapping[Part, Stored]) -> None:
        """Raises ModelError for experts that are stored in different schemes: all of a layer are one product."""
        (first, kind), *others = [(part, _kind(one)) for part, one in stored.items()]
        other = next((part for part, one in others if one != kind), None)
        if other is not None:
            raise ModelError(
                f"the checkpoint stores '{_name(first)}' and '{_name(other)}' in different formats, but experts are "
                "computed as one product; use a copy of the model that quantizes both in the same way."
            )


_CONVERTED = ("int8", "fp8")
"""What weights are converted to, the first that a kernel takes. Not int4: its groups lose more than a file of four bits
has lost already."""
_COMPARED = 1024
"""Rows of a weight by which a loss is measured."""


def _convert(raw: dict[str, Tensor], scheme: Scheme, kind: str, name: str, logged: set[str]) -> None:
    """Rounds what was computed, and logs what the first weight of a kind loses."""
    weight = raw.pop("weight")
    raw.update(quantised(weight, scheme))
    if kind in logged or weight.is_meta or weight.dim() > 2:
        return
    logged.add(kind)
    rows = slice(_COMPARED)
    few = weight[rows].float()
    lost = (meaning_of(raw, scheme, rows) - few).square().mean().sqrt() / few.square().mean().sqrt()
    log.warning(
        "weights are converted from %s to %s, at a loss: the error is %.2f%% of the size of the weights of '%s' (root "
        "mean squares)", kind, describe_scheme(scheme), 100 * float(lost), name,
    )  # fmt: skip


def _computed(part: Part, stored: StoredWeight) -> Part:
    """A weight as its scheme means it; how activations would be rounded is left out."""
    scheme, names = stored.scheme, [name for name in stored.parts if name != "input_scale"]

    def call(*tensors: Tensor) -> Tensor:
        parts = dict(zip(names, tensors, strict=True))
        _refuse_infinite(parts, _name(part))
        return meaning(parts, scheme)

    kind = describe_scheme(replace(scheme, activation=None))
    return replace(part, decoding=Decoding(tuple(stored.parts[name] for name in names), call, kind))


def _kind(stored: Stored) -> Scheme | None:
    """Equal for weights that can be joined into one product. Blocks may have different numbers of rows."""
    if not isinstance(stored, StoredWeight):
        return None
    block = stored.scheme.weight.block
    return stored.scheme if block is None else with_block(stored.scheme, (1, block[1]))


def _quantized(weight: Joins, stored: Mapping[Part, Stored]) -> dict[Part, StoredWeight] | None:
    """The weights of a product, with blocks that can be joined; None if they are not quantized."""
    joins = [
        [(part.shape[0], one) for part in join if isinstance(one := stored[part], StoredWeight)] for join in weight
    ]
    if not joins[0]:
        return None
    pairs = (zip(join, ones, strict=True) for join, ones in zip(weight, joinable(joins), strict=True))
    return {part: one for pair in pairs for part, one in pair}


def _check_scales(raw: dict[str, Tensor], name: str) -> None:
    """Raises ModelError for scales that are not finite. The weights of one product share their input, which is rounded
    once, with the largest of their scales."""
    _refuse_infinite(raw, name)
    if "input_scale" in raw:
        raw["input_scale"] = raw["input_scale"].amax(-1)


def _refuse_infinite(parts: Mapping[str, Tensor], name: str) -> None:
    """Raises ModelError for scales that would make every answer noise."""
    for part in ("scale", "input_scale"):
        if part in parts and not parts[part].is_meta and not bool(parts[part].float().isfinite().all()):
            raise ModelError(f"the checkpoint's scales of '{printable(name)}' are not finite; use another copy.")


def _name(part: Part) -> str:
    return part.name.removesuffix(".weight")


def _fits(spec: LinearSpec) -> bool:
    assert spec.scheme is not None
    return spec.n % spec.scheme.granule(0) == 0 and spec.k % spec.scheme.granule(1) == 0


def negotiate(
    name: str | None, platform: Platform, form: WeightFormat | None = None, method: str = "", *, convert: bool = False
) -> Weights:
    """name: the value of --quantization, or None. form: the checkpoint's, if its weights are quantized; method: the
    form's name. convert: as in QuantizedCheckpoint. Raises PlatformError if the platform does not accept the scheme of
    that name."""
    if form is not None:
        assert name is None, "the configuration refuses to quantize twice"
        return QuantizedCheckpoint(method, form, platform.scheme, convert=convert)
    if name is None:
        return NotQuantized()
    weights = QuantizeAtLoad(name, platform.scheme)
    answer = weights.answer(candidates(name, GROUPS[0])[0])
    if isinstance(answer, str):
        raise PlatformError(
            f"platform '{platform.name}' does not take --quantization {name} ({answer}); remove the flag."
        )
    return weights
