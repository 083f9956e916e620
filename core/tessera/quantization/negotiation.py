"""Which scheme each weight gets: the one of --quantization or of the checkpoint, if the platform accepts it and it fits
the weight's shard."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from torch import Tensor

from tessera.errors import ModelError, PlatformError
from tessera.ops import LinearSpec
from tessera.platform.device import Reason
from tessera.platform.ops import BoundOps
from tessera.platform.platform import Platform
from tessera.platform.quantization import Part, QuantSpec, Scheme, StoredWeight, WeightFormat
from tessera.quantization.blocks import joinable
from tessera.quantization.description import describe_scheme
from tessera.quantization.rounding import quantised
from tessera.quantization.schemes import GROUPS, candidates
from tessera.quantization.weights import Joins, NotQuantized, ProductWeight, SkippedWeight, Weights

Stored = StoredWeight | Part | Reason
"""Of WeightFormat.stored."""
PlatformAnswer = Scheme | Reason
"""Of Platform.scheme: the scheme that its kernels take in place of one, or why there is none."""


class _Negotiation:
    """What quantizing at load and a quantized checkpoint have in common."""

    def __init__(self, name: str, ask_platform: Callable[[Scheme], PlatformAnswer]) -> None:
        self.name, self._ask_platform = name, ask_platform
        self.quantised: Counter[str] = Counter()
        self.skipped: list[SkippedWeight] = []
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

    def _count(self, spec: LinearSpec) -> None:
        assert spec.scheme is not None
        self.quantised[describe_scheme(spec.scheme)] += 1


class QuantizeAtLoad(_Negotiation):
    """Rounds the weights to a scheme of --quantization while they are loaded."""

    def choose(self, spec: LinearSpec, weight: Joins, ops: BoundOps, module: str = "Linear") -> ProductWeight:
        reason = f"input size {spec.k} is not divisible by any of {', '.join(map(str, GROUPS))}"
        for scheme in candidates(self.name, spec.k):
            answer = self.answer(scheme)
            if isinstance(answer, str):
                reason = answer
                continue
            quantized = self._shardable(spec, scheme, ops)
            if quantized is not None:
                self._count(quantized)
                return ProductWeight(quantized, {"weight": weight}, partial(_round, scheme=scheme))
            reason = f"a shard of {spec.n} x {spec.k} is too small a part for the platform's scheme"
        self.skipped.append(SkippedWeight(_name(weight[0][0]), reason, wanted=True))
        return ProductWeight(spec, {"weight": weight})


def _round(raw: dict[str, Tensor], scheme: Scheme) -> None:
    """Drops the original weight before the result is packed."""
    raw.update(quantised(raw.pop("weight"), scheme))


class QuantizedCheckpoint(_Negotiation):
    """Reads weights that the checkpoint has quantized. If the platform does not accept their scheme, the reference
    computes the products. form: the checkpoint's format."""

    def __init__(self, name: str, form: WeightFormat, ask_platform: Callable[[Scheme], PlatformAnswer]) -> None:
        super().__init__(name, ask_platform)
        self._format = form

    @property
    def kv(self) -> QuantSpec | None:
        return self._format.kv

    def kv_scales(self, attention: str) -> Mapping[str, Part]:
        return self._format.kv_scales(attention)

    def choose(self, spec: LinearSpec, weight: Joins, ops: BoundOps, module: str = "Linear") -> ProductWeight:
        stored = {part: self._format.stored(part, module, spec.dtype) for join in weight for part in join}
        if any(isinstance(one, Part) for one in stored.values()):
            return self._decoded(spec, weight, stored)
        stored = _join_blocks(weight, stored)
        _refuse_different_schemes(stored)
        first, first_stored = next(iter(stored.items()))
        if not isinstance(first_stored, StoredWeight):
            self.skip(_name(first), str(first_stored))
            return ProductWeight(spec, {"weight": weight})
        quantized = self._shardable(spec, first_stored.scheme, ops)
        if quantized is None:
            raise ModelError(
                f"'{_name(first)}' ({describe_scheme(first_stored.scheme)}) has a shard of {spec.n} x {spec.k}, which "
                f"the groups of the format '{self.name}' do not divide; use another --tensor-parallel-size."
            )
        self._count(quantized)
        parts = _parts_by_name(weight, stored)
        return ProductWeight(quantized, parts, _take_largest_input_scale if "input_scale" in parts else None)

    def _decoded(self, spec: LinearSpec, weight: Joins, stored: Mapping[Part, Stored]) -> ProductWeight:
        """A product of weights that are computed at load, perhaps beside some that are not quantized."""
        for part, one in stored.items():
            if isinstance(one, StoredWeight):
                raise ModelError(
                    f"the checkpoint's format '{self.name}' has no one way to store what is computed with "
                    f"'{_name(part)}'; use another copy of the model."
                )
            if not isinstance(one, Part):
                self.skip(_name(part), one)
        decoded = {part: one if isinstance(one, Part) else part for part, one in stored.items()}
        first = next(one for one in decoded.values() if one.decoding is not None)
        assert first.decoding is not None
        self.quantised[f"{first.decoding.stored}, decoded to {spec.dtype}"] += 1
        return ProductWeight(spec, {"weight": [[decoded[part] for part in join] for join in weight]})


def _join_blocks(weight: Joins, stored: dict[Part, Stored]) -> dict[Part, Stored]:
    """The weights of a product, if all are quantized with blocks that can be joined."""
    quantized = _quantized(stored)
    if len(quantized) < len(stored):
        return stored
    joined = joinable([[(part.shape[0], quantized[part]) for part in join] for join in weight])
    return {part: one for join, ones in zip(weight, joined, strict=True) for part, one in zip(join, ones, strict=True)}


def _refuse_different_schemes(stored: Mapping[Part, Stored]) -> None:
    """Raises ModelError for weights of one product that are stored in different schemes."""
    schemes = {part: one.scheme if isinstance(one, StoredWeight) else None for part, one in stored.items()}
    first, scheme = next(iter(schemes.items()))
    other = next((part for part, one in schemes.items() if one != scheme), None)
    if other is not None:
        raise ModelError(
            f"the checkpoint stores '{_name(first)}' and '{_name(other)}' in different formats, but they are "
            "computed as one product; quantize both in the same way."
        )


def _parts_by_name(weight: Joins, stored: Mapping[Part, Stored]) -> dict[str, Joins]:
    """The parts to read of weights that are all quantized in the same scheme."""
    quantized = _quantized(stored)
    names = next(iter(quantized.values())).scheme.parts
    return {name: [[quantized[part].parts[name] for part in join] for join in weight] for name in names}


def _quantized(stored: Mapping[Part, Stored]) -> dict[Part, StoredWeight]:
    return {part: one for part, one in stored.items() if isinstance(one, StoredWeight)}


def _take_largest_input_scale(raw: dict[str, Tensor]) -> None:
    """The weights of one product share their input, which is rounded once, with the largest of their scales."""
    raw["input_scale"] = raw["input_scale"].amax(-1)


def _name(part: Part) -> str:
    return part.name.removesuffix(".weight")


def _fits(spec: LinearSpec) -> bool:
    assert spec.scheme is not None
    return spec.n % spec.scheme.granule(0) == 0 and spec.k % spec.scheme.granule(1) == 0


def negotiate(name: str | None, platform: Platform, form: WeightFormat | None = None, method: str = "") -> Weights:
    """name: the value of --quantization, or None. form: the checkpoint's, if its weights are quantized; method: the
    form's name. Raises PlatformError if the platform does not accept the scheme of that name."""
    if form is not None:
        assert name is None, "the configuration refuses to quantize twice"
        return QuantizedCheckpoint(method, form, platform.scheme)
    if name is None:
        return NotQuantized()
    weights = QuantizeAtLoad(name, platform.scheme)
    answer = weights.answer(candidates(name, GROUPS[0])[0])
    if isinstance(answer, str):
        raise PlatformError(
            f"platform '{platform.name}' does not take --quantization {name} ({answer}); remove the flag."
        )
    return weights
