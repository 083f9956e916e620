"""What a model's products are to do with their weights, and the answer where nothing is quantized."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from tessera.ops import LinearSpec
from tessera.platform.device import Reason
from tessera.platform.ops import BoundOps
from tessera.platform.quantization import Part, QuantSpec


@dataclass(frozen=True)
class SkippedWeight:
    """A weight that is not quantized."""

    name: str
    reason: Reason
    # --quantization names a scheme for it.
    wanted: bool = False


Joins = Sequence[Sequence[Part]]
"""The parts that make up a product's weight: one list to concatenate by rows, or one for each expert."""


@dataclass(frozen=True)
class ProductWeight:
    """What was decided about the weight of a product."""

    # To bind.
    spec: LinearSpec
    # To read from the checkpoint, by name.
    parts: Mapping[str, Joins]
    # Turns what was read, in place, into the parts that `prepare` of the op receives; None if nothing is to be done.
    convert: Callable[[dict[str, Tensor]], None] | None = None


class Weights(Protocol):
    """What a model's products are to do with their weights."""

    # The value of --quantization or the name of the checkpoint's format; "" if there is neither.
    name: str
    # Number of linears by the description of their scheme.
    quantised: Counter[str]
    skipped: list[SkippedWeight]
    # By such a description, why the weights are decoded instead of multiplied with as they are stored; often empty.
    reasons: dict[str, Reason]

    def choose(self, spec: LinearSpec, weight: Joins, ops: BoundOps, module: str = "Linear") -> Sequence[ProductWeight]:
        """The products that a weight is used in: one, or several whose outputs are one after the other, if its parts
        are stored differently; experts are always one. spec: the product with an unquantized weight. module: as for
        WeightFormat.stored. Raises ModelError for what no product is possible with."""

    def choose_table(self, spec: LinearSpec, weight: Part, ops: BoundOps) -> ProductWeight | None:
        """The weight of an embedding that is no head, if it can stay as it is stored and a kernel multiplies with it;
        None: it becomes a table. spec: as if it were a product."""

    def count_table(self, chosen: ProductWeight) -> None:
        """Counts a table that stays as it is stored."""

    def decoded(self, weight: Part, dtype: str, module: str = "Parameter") -> Part:
        """A weight that is used as it is, in no product of an op, computed from what the checkpoint has in its place if
        that is quantized. dtype: of the weight. module: as for WeightFormat.stored."""

    def skip(self, weight: str, reason: Reason) -> None:
        """Records a weight that is never quantized."""

    @property
    def kv(self) -> QuantSpec | None:
        """As in WeightFormat; None without one."""

    def kv_scales(self, attention: str) -> Mapping[str, Part]:
        """As in WeightFormat; empty without one."""


class NotQuantized:
    """Quantizes nothing."""

    def __init__(self) -> None:
        self.name = ""
        self.quantised: Counter[str] = Counter()
        self.skipped: list[SkippedWeight] = []
        self.reasons: dict[str, Reason] = {}

    def choose(self, spec: LinearSpec, weight: Joins, ops: BoundOps, module: str = "Linear") -> Sequence[ProductWeight]:
        return (ProductWeight(spec, {"weight": weight}),)

    def choose_table(self, spec: LinearSpec, weight: Part, ops: BoundOps) -> ProductWeight | None:
        return None

    def count_table(self, chosen: ProductWeight) -> None:
        """There is none."""

    def decoded(self, weight: Part, dtype: str, module: str = "Parameter") -> Part:
        return weight

    def skip(self, weight: str, reason: Reason) -> None:
        """Records nothing: no weight is quantized."""

    @property
    def kv(self) -> QuantSpec | None:
        return None

    def kv_scales(self, attention: str) -> Mapping[str, Part]:
        return {}
