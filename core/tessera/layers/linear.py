"""Products with a weight, whole or sharded by rows (outputs) or columns (inputs)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from tessera.layers.build import Build
from tessera.layers.weights import Part, Slot
from tessera.platform.ops import LinearSpec, Packed


@dataclass(frozen=True)
class Source:
    """One weight of the checkpoint, [n, k]: its name without ".weight", and this rank's rows and columns of it."""

    name: str
    n: int
    k: int
    rows: tuple[int, int] | None = None
    columns: tuple[int, int] | None = None

    @property
    def shape(self) -> tuple[int, int]:
        rows = self.n if self.rows is None else self.rows[1] - self.rows[0]
        columns = self.k if self.columns is None else self.columns[1] - self.columns[0]
        return rows, columns


class Linear:
    """One or several weights of the checkpoint as one product: y = x W^T + b, outputs in the order of the sources. Of a
    product sharded by columns only the first rank adds the bias, since the sum over ranks follows."""

    def __init__(self, build: Build, sources: Sequence[Source], *, bias: bool = False) -> None:
        n, k = sum(source.shape[0] for source in sources), sources[0].shape[1]
        bias = bias and (sources[0].columns is None or build.group.rank == 0)
        self.spec = LinearSpec(n, k, build.dtype, bias=bias)
        parts = {"weight": [Part(f"{s.name}.weight", (s.n, s.k), s.rows, s.columns) for s in sources]}
        if bias:
            parts["bias"] = [Part(f"{s.name}.bias", (s.n,), s.rows) for s in sources]
        self.slot = build.slot(Slot(parts, lambda raw, into: build.ops.prepare("linear", self.spec, raw, into)))
        self.call = build.ops.bind("linear", self.spec)

    def __call__(self, x: Tensor, *, out: Tensor | None = None) -> Tensor:
        result: Tensor = self.call(x, self.slot.packed, out=out)
        return result

    @property
    def weight(self) -> Packed:
        return self.slot.packed
