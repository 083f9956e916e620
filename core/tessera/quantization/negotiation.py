"""Which scheme each weight gets: the one of --quantization or of the checkpoint, if the platform accepts it and it fits
the weight's shard."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Protocol

from torch import Tensor

from tessera.errors import ModelError, PlatformError
from tessera.ops import LinearSpec
from tessera.platform.device import Reason
from tessera.platform.ops import BoundOps
from tessera.platform.platform import Platform
from tessera.platform.quantization import ActSpec, Part, QuantSpec, Scheme, StoredWeight, WeightFormat
from tessera.quantization.blocks import joinable
from tessera.quantization.rounding import quantised
from tessera.quantization.schemes import GROUPS, candidates


@dataclass(frozen=True)
class Left:
    """A weight that is not quantized, and why. wanted: --quantization asked for it."""

    name: str
    reason: Reason
    wanted: bool = False


Joins = Sequence[Sequence[Part]]
"""The parts that make up a product's weight: one list to concatenate by rows, or one for each expert."""


@dataclass(frozen=True)
class Chosen:
    """What was decided about a product. spec: to bind. parts: to read from the checkpoint, by name. made: turns what
    was read, in place, into the parts that `prepare` of the op receives; None if nothing is to be done."""

    spec: LinearSpec
    parts: Mapping[str, Joins]
    made: Callable[[dict[str, Tensor]], None] | None = None


class Weights(Protocol):
    """What a model's products are to do with their weights."""

    name: str
    """The value of --quantization or the name of the checkpoint's format; "" if there is neither."""

    quantised: Counter[str]
    """Number of linears by the description of their scheme."""

    left: list[Left]

    def choose(self, asked: LinearSpec, weight: Joins, ops: BoundOps, module: str = "Linear") -> Chosen:
        """asked: the product with an unquantized weight. module: as for WeightFormat.stored."""

    def leave(self, weight: str, reason: Reason) -> None:
        """Records a weight that is never quantized."""

    @property
    def kv(self) -> QuantSpec | None:
        """As in WeightFormat; None without one."""

    def kv_scales(self, attention: str) -> Mapping[str, Part]:
        """As in WeightFormat; empty without one."""


class AsTheyAre:
    """Quantizes nothing."""

    def __init__(self) -> None:
        self.name = ""
        self.quantised: Counter[str] = Counter()
        self.left: list[Left] = []

    def choose(self, asked: LinearSpec, weight: Joins, ops: BoundOps, module: str = "Linear") -> Chosen:
        return Chosen(asked, {"weight": weight})

    def leave(self, weight: str, reason: Reason) -> None:
        """Records nothing: no weight is quantized."""

    @property
    def kv(self) -> QuantSpec | None:
        return None

    def kv_scales(self, attention: str) -> Mapping[str, Part]:
        return {}


class _Quantising:
    """What both ways have in common. name: as in Weights. ask: Platform.scheme."""

    def __init__(self, name: str, ask: Callable[[Scheme], Scheme | Reason]) -> None:
        self.name, self._ask = name, ask
        self.quantised: Counter[str] = Counter()
        self.left: list[Left] = []
        self._taken: dict[Scheme, Scheme | Reason] = {}

    def leave(self, weight: str, reason: Reason) -> None:
        self.left.append(Left(weight, reason))

    @property
    def kv(self) -> QuantSpec | None:
        return None

    def kv_scales(self, attention: str) -> Mapping[str, Part]:
        return {}

    def taken(self, offered: Scheme) -> Scheme | Reason:
        """The platform's answer."""
        if offered not in self._taken:
            self._taken[offered] = self._ask(offered)
        return self._taken[offered]

    def _fitting(self, asked: LinearSpec, offered: Scheme, ops: BoundOps) -> LinearSpec | None:
        """The product with the platform's scheme if a kernel supports it, else with the offered scheme, for the
        reference. None if the shard fits neither."""
        taken, kernel = self.taken(offered), ops.ops["linear"].kernel
        if not isinstance(taken, str):
            own = replace(asked, scheme=taken)
            if _fits(own) and kernel is not None and kernel.supports(own) is None:
                return own
        plain = replace(asked, scheme=offered)
        return plain if _fits(plain) else None


class AtLoad(_Quantising):
    """Rounds the weights to a scheme of --quantization while they are loaded."""

    def choose(self, asked: LinearSpec, weight: Joins, ops: BoundOps, module: str = "Linear") -> Chosen:
        reason = f"input size {asked.k} is not divisible by any of {', '.join(map(str, GROUPS))}"
        for offered in candidates(self.name, asked.k):
            taken = self.taken(offered)
            if isinstance(taken, str):
                reason = taken
                continue
            spec = self._fitting(asked, offered, ops)
            if spec is not None:
                assert spec.scheme is not None
                self.quantised[described(spec.scheme)] += 1
                return Chosen(spec, {"weight": weight}, partial(_rounded, scheme=offered))
            reason = f"a shard of {asked.n} x {asked.k} is too small a part for the platform's scheme"
        self.left.append(Left(_name(weight[0][0]), reason, wanted=True))
        return Chosen(asked, {"weight": weight})


def _rounded(raw: dict[str, Tensor], scheme: Scheme) -> None:
    """Drops the original weight before the result is packed."""
    raw.update(quantised(raw.pop("weight"), scheme))


class AsStored(_Quantising):
    """Reads weights that the checkpoint has quantized. If the platform does not accept their scheme, the reference
    computes the products."""

    def __init__(self, name: str, form: WeightFormat, ask: Callable[[Scheme], Scheme | Reason]) -> None:
        super().__init__(name, ask)
        self._format = form

    @property
    def kv(self) -> QuantSpec | None:
        return self._format.kv

    def kv_scales(self, attention: str) -> Mapping[str, Part]:
        return self._format.kv_scales(attention)

    def choose(self, asked: LinearSpec, weight: Joins, ops: BoundOps, module: str = "Linear") -> Chosen:
        found = _made_joinable(
            weight, {part: self._format.stored(part, module, asked.dtype) for join in weight for part in join}
        )
        first, stored = next(iter(found.items()))
        other = next((part for part, one in found.items() if _scheme(one) != _scheme(stored)), None)
        if other is not None:
            raise ModelError(
                f"the checkpoint stores '{_name(first)}' and '{_name(other)}' in different formats, but they are "
                "computed as one product; quantize both in the same way."
            )
        if not isinstance(stored, StoredWeight):
            self.leave(_name(first), stored)
            return Chosen(asked, {"weight": weight})
        spec = self._fitting(asked, stored.scheme, ops)
        if spec is None:
            raise ModelError(
                f"'{_name(first)}' ({described(stored.scheme)}) has a shard of {asked.n} x {asked.k}, which the groups "
                f"of the format '{self.name}' do not divide; use another --tensor-parallel-size."
            )
        assert spec.scheme is not None
        self.quantised[described(spec.scheme)] += 1
        quantized = {part: one for part, one in found.items() if isinstance(one, StoredWeight)}
        parts = {
            name: [[quantized[part].parts[name] for part in join] for join in weight] for name in stored.scheme.parts
        }
        return Chosen(spec, parts, _with_one_input_scale if "input_scale" in parts else None)


def _made_joinable(weight: Joins, found: dict[Part, StoredWeight | Reason]) -> dict[Part, StoredWeight | Reason]:
    """The weights of a product, if all are quantized with blocks that can be joined."""
    quantized = {part: one for part, one in found.items() if isinstance(one, StoredWeight)}
    if len(quantized) < len(found):
        return found
    made = joinable([[(part.shape[0], quantized[part]) for part in join] for join in weight])
    return {part: one for join, ones in zip(weight, made, strict=True) for part, one in zip(join, ones, strict=True)}


def _with_one_input_scale(raw: dict[str, Tensor]) -> None:
    """The weights of one product share their input, which is rounded once, with the largest of their scales."""
    raw["input_scale"] = raw["input_scale"].amax(-1)


def _scheme(stored: StoredWeight | Reason) -> Scheme | None:
    return stored.scheme if isinstance(stored, StoredWeight) else None


def _name(part: Part) -> str:
    return part.name.removesuffix(".weight")


def _fits(spec: LinearSpec) -> bool:
    assert spec.scheme is not None
    return spec.n % spec.scheme.granule(0) == 0 and spec.k % spec.scheme.granule(1) == 0


def weights_of(name: str | None, platform: Platform, form: WeightFormat | None = None, method: str = "") -> Weights:
    """name: the value of --quantization, or None. form: the checkpoint's, if its weights are quantized; method: the
    form's name. Raises PlatformError if the platform does not accept the scheme of that name."""
    if form is not None:
        assert name is None, "the configuration refuses to quantize twice"
        return AsStored(method, form, platform.scheme)
    if name is None:
        return AsTheyAre()
    weights = AtLoad(name, platform.scheme)
    answer = weights.taken(candidates(name, GROUPS[0])[0])
    if isinstance(answer, str):
        raise PlatformError(
            f"platform '{platform.name}' does not take --quantization {name} ({answer}); remove the flag."
        )
    return weights


_SHARED: Mapping[str, str] = MappingProxyType(
    {"channel": "one scale per row", "token": "one scale per token", "tensor": "one scale"}
)


def described(scheme: Scheme) -> str:
    """A scheme in words."""
    text = _numbers(scheme.weight)
    return text if scheme.activation is None else f"{text}; activations {_numbers(scheme.activation)}"


def _numbers(spec: QuantSpec) -> str:
    """The numbers of a weight or an activation in words."""
    if spec.block is not None:
        shared = f"one scale per block of {spec.block[0]} x {spec.block[1]}"
    elif spec.group:
        shared = f"one scale per {'token and ' if isinstance(spec, ActSpec) else ''}group of {spec.group}"
    else:
        shared = _SHARED[spec.granularity]
    return f"{spec.dtype}, {shared}"
