"""Which scheme each weight gets: asked for by name, taken or not by the platform, fitting the weight's shard or not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Protocol

from tessera.errors import PlatformError
from tessera.ops import LinearSpec
from tessera.platform.device import Reason
from tessera.platform.ops import BoundOps
from tessera.platform.platform import Platform
from tessera.platform.quantization import QuantSpec, Scheme
from tessera.quantization.schemes import GROUPS, candidates


@dataclass(frozen=True)
class Left:
    """A weight that is not quantized, and why. wanted: --quantization asked for it."""

    name: str
    reason: Reason
    wanted: bool = False


class Weights(Protocol):
    """What a model's products are to do with their weights."""

    name: str
    """That --quantization has; "" where it is not given."""

    quantised: Counter[str]
    """Number of linears by the description of their scheme."""

    left: list[Left]

    def choose(self, asked: LinearSpec, weight: str, ops: BoundOps) -> tuple[LinearSpec, Scheme | None]:
        """The spec that a product is to have, and the scheme in whose parts its weight is to be prepared. weight: its
        name."""

    def leave(self, weight: str, reason: Reason) -> None:
        """Records a weight that is never quantized."""


class AsTheyAre:
    """Quantizes nothing."""

    def __init__(self) -> None:
        self.name = ""
        self.quantised: Counter[str] = Counter()
        self.left: list[Left] = []

    def choose(self, asked: LinearSpec, weight: str, ops: BoundOps) -> tuple[LinearSpec, Scheme | None]:
        return asked, None

    def leave(self, weight: str, reason: Reason) -> None:
        """Records nothing: no weight is quantized."""


class AtLoad:
    """name: of a scheme. ask: Platform.scheme."""

    def __init__(self, name: str, ask: Callable[[Scheme], Scheme | Reason]) -> None:
        self.name, self._ask = name, ask
        self.quantised: Counter[str] = Counter()
        self.left: list[Left] = []
        self._taken: dict[Scheme, Scheme | Reason] = {}

    def choose(self, asked: LinearSpec, weight: str, ops: BoundOps) -> tuple[LinearSpec, Scheme | None]:
        reason = f"input size {asked.k} is not divisible by any of {', '.join(map(str, GROUPS))}"
        for offered in candidates(self.name, asked.k):
            taken = self.taken(offered)
            if isinstance(taken, str):
                reason = taken
                continue
            spec = self._fitting(asked, taken, offered, ops)
            if spec is not None:
                assert spec.scheme is not None
                self.quantised[described(spec.scheme)] += 1
                return spec, offered
            reason = f"a shard of {asked.n} x {asked.k} is too small a part for the platform's scheme"
        self.left.append(Left(weight, reason, wanted=True))
        return asked, None

    def _fitting(self, asked: LinearSpec, taken: Scheme, offered: Scheme, ops: BoundOps) -> LinearSpec | None:
        """With the platform's own scheme where a kernel takes it; the reference takes the parts of the offered one."""
        kernel, own, plain = ops.ops["linear"].kernel, replace(asked, scheme=taken), replace(asked, scheme=offered)
        if _fits(own) and kernel is not None and kernel.supports(own) is None:
            return own
        return plain if _fits(plain) else None

    def leave(self, weight: str, reason: Reason) -> None:
        self.left.append(Left(weight, reason))

    def taken(self, offered: Scheme) -> Scheme | Reason:
        """The platform's answer."""
        if offered not in self._taken:
            self._taken[offered] = self._ask(offered)
        return self._taken[offered]


def _fits(spec: LinearSpec) -> bool:
    assert spec.scheme is not None
    return spec.n % spec.scheme.granule(0) == 0 and spec.k % spec.scheme.granule(1) == 0


def weights_of(name: str | None, platform: Platform) -> Weights:
    """name: of a scheme, None for none. Raises PlatformError where the platform does not take it."""
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
    {"channel": "a scale a row", "token": "a scale a token", "tensor": "one scale"}
)


def described(scheme: Scheme) -> str:
    """A scheme in words."""
    text = _numbers(scheme.weight)
    return text if scheme.activation is None else f"{text}; activations {_numbers(scheme.activation)}"


def _numbers(spec: QuantSpec) -> str:
    return f"{spec.dtype}, {_SHARED.get(spec.granularity, f'a scale a {spec.granularity} of {spec.group}')}"
