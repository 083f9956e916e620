"""Embedding rows by token id: native in bfloat16 and float32, otherwise with torch; and rows of a packed weight, if the
native kernels multiply with it."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.nn import functional as F

from tessera.platform import (
    BoundOps,
    Device,
    EmbeddingSpec,
    Kernel,
    Packed,
    PackedEmbeddingSpec,
    Reason,
    SegmentEmbeddingSpec,
)
from tessera_cpu import native
from tessera_cpu.linear import products_of, taken
from tessera_cpu.output import into


class Embedding(Kernel[EmbeddingSpec]):
    def supports(self, spec: EmbeddingSpec) -> str | None:
        return None

    def batch_invariant(self, spec: EmbeddingSpec) -> None:
        return None

    def bind(self, spec: EmbeddingSpec, ops: BoundOps, device: Device) -> Any:
        if native.library() is not None and spec.dtype in native.ENTRIES and not spec.sharded:
            look_up = _LookingUp(native.library(), spec.n, spec.dtype, spec.scale)

            def native_embedding(tokens: Tensor, weight: Tensor, *, out: Tensor | None = None) -> Tensor:
                return look_up(tokens, weight, out)

            return native_embedding

        def embedding(tokens: Tensor, weight: Tensor, *, out: Tensor | None = None) -> Tensor:
            rows = F.embedding(tokens, weight)
            return into(rows if spec.scale == 1.0 else rows.mul_(spec.scale), out)

        def part_of_embedding(tokens: Tensor, weight: Tensor, *, out: Tensor | None = None) -> Tensor:
            here = tokens - spec.start
            inside = (here >= 0) & (here < spec.rows)
            rows = F.embedding(here.clamp(0, spec.rows - 1), weight).mul_(inside[:, None])
            return into(rows if spec.scale == 1.0 else rows.mul_(spec.scale), out)

        return part_of_embedding if spec.sharded else embedding


class _LookingUp:
    """The native kernel, bound to one place in the model."""

    def __init__(self, library: Any, n: int, dtype: str, scale: float = 1.0) -> None:
        self.call, self.task = (
            library.tessera_cpu_look_up,
            native.Lookup(n=n, scale=scale, number=native.ENTRIES[dtype]),
        )

    def __call__(self, ids: Tensor, weight: Tensor, out: Tensor | None, boundaries: Tensor | None = None) -> Tensor:
        """ids, boundaries [T] int32; weight [rows, n]: its rows may have any stride."""
        task = self.task
        rows = weight.new_empty(len(ids), task.n) if out is None or not out.is_contiguous() else out
        task.ids, task.table, task.stride = ids.data_ptr(), weight.data_ptr(), weight.stride(0)
        task.boundaries = None if boundaries is None else boundaries.data_ptr()
        task.out = rows.data_ptr()
        self.call(task, len(ids))
        return rows if out is None or out is rows else out.copy_(rows)


class SegmentEmbedding(Kernel[SegmentEmbeddingSpec]):
    def supports(self, spec: SegmentEmbeddingSpec) -> Reason | None:
        return None if native.library() is not None and spec.dtype in native.ENTRIES else "no native kernel"

    def batch_invariant(self, spec: SegmentEmbeddingSpec) -> None:
        return None

    def bind(self, spec: SegmentEmbeddingSpec, ops: BoundOps, device: Device) -> Any:
        look_up = _LookingUp(native.library(), spec.n, spec.dtype)

        def segment_embedding(
            positions: Tensor, boundaries: Tensor | None, weight: Tensor, *, out: Tensor | None = None
        ) -> Tensor:
            if boundaries is not None:
                return look_up(positions, weight, out, boundaries)
            return into(weight[0].expand(len(positions), spec.n), out)

        return segment_embedding


class PackedEmbedding(Kernel[PackedEmbeddingSpec]):
    def supports(self, spec: PackedEmbeddingSpec) -> Reason | None:
        if spec.linear.experts:
            return "experts are packed one by one"
        found = products_of(spec.linear)
        if isinstance(found, str):
            return found
        return "only products can read what oneDNN packed" if found.bind_look_up(spec) is None else None

    def batch_invariant(self, spec: PackedEmbeddingSpec) -> None:
        return None

    def bind(self, spec: PackedEmbeddingSpec, ops: BoundOps, device: Device) -> Any:
        look_up = taken(spec.linear).bind_look_up(spec)
        assert look_up is not None

        def packed_embedding(tokens: Tensor, weight: Packed, *, out: Tensor | None = None) -> Tensor:
            return look_up(tokens, weight["weight"], out=out)

        return packed_embedding
