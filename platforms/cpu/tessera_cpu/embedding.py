"""Embedding rows by token id: native in bfloat16, otherwise with torch; and rows of a packed weight, if the native
kernels multiply with it."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.nn import functional as F

from tessera.platform import BoundOps, Device, EmbeddingSpec, Kernel, Packed, PackedEmbeddingSpec, Reason
from tessera_cpu.linear import products_of, taken
from tessera_cpu.native import library
from tessera_cpu.output import into


class Embedding(Kernel[EmbeddingSpec]):
    def supports(self, spec: EmbeddingSpec) -> str | None:
        return None

    def batch_invariant(self, spec: EmbeddingSpec) -> None:
        return None

    def bind(self, spec: EmbeddingSpec, ops: BoundOps, device: Device) -> Any:
        native = library()
        if native is not None and spec.dtype == "bfloat16" and not spec.sharded:
            return _native_embedding(native, spec)

        def embedding(tokens: Tensor, weight: Tensor, *, out: Tensor | None = None) -> Tensor:
            rows = F.embedding(tokens, weight)
            return into(rows if spec.scale == 1.0 else rows.mul_(spec.scale), out)

        def part_of_embedding(tokens: Tensor, weight: Tensor, *, out: Tensor | None = None) -> Tensor:
            here = tokens - spec.start
            inside = (here >= 0) & (here < spec.rows)
            rows = F.embedding(here.clamp(0, spec.rows - 1), weight).mul_(inside[:, None])
            return into(rows if spec.scale == 1.0 else rows.mul_(spec.scale), out)

        return part_of_embedding if spec.sharded else embedding


def _native_embedding(native: Any, spec: EmbeddingSpec) -> Any:
    def embedding(tokens: Tensor, weight: Tensor, *, out: Tensor | None = None) -> Tensor:
        """tokens [T] int32, weight [rows, n]; its rows may have any stride."""
        rows = weight.new_empty(len(tokens), spec.n) if out is None or not out.is_contiguous() else out
        native.tessera_cpu_look_up(
            tokens.data_ptr(), weight.data_ptr(), weight.stride(0), rows.data_ptr(), len(tokens), spec.n, spec.scale
        )  # fmt: skip
        return rows if out is None or out is rows else out.copy_(rows)

    return embedding


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
