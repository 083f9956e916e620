"""Launches over a cache in which all that is not written is NaN, and what attention over them must give."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from tessera.platform.attention import AttentionBackend, AttentionLayer, LayerSpec, Paged, Window
from tessera.platform.device import HostDevice
from tessera.platform.launch import Launch, LaunchKey
from tessera.platform.ops import BoundOps
from tessera.platform.platform import MemoryFigures
from tessera.reference import REFERENCE
from tessera.reference.dtypes import torch_dtype


@dataclass(frozen=True)
class AttentionCase:
    """rows: tokens to compute and tokens in the cache after, decoding ones first. stride: tokens between the starts of
    rows, so that padding lies between them; 0: one after the other. padding: rows, and tokens, at the end."""

    rows: tuple[tuple[int, int], ...]
    block_size: int = 16
    heads: int = 6
    kv_heads: int = 2
    head_dim: int = 12
    window: int | None = None
    softcap: float | None = None
    stride: int = 0
    padding: int = 0
    dtype: str = "float32"

    def spec(self) -> LayerSpec:
        cache = Paged(self.kv_heads, self.head_dim, self.dtype)
        if self.window is not None:
            cache = Window(self.kv_heads, self.head_dim, self.dtype, window=self.window)
        return LayerSpec(
            0, "attention", self.heads, self.kv_heads, self.head_dim, self.head_dim**-0.5, self.dtype, cache,
            window=self.window, softcap=self.softcap,
        )  # fmt: skip


def attention_cases() -> Iterator[AttentionCase]:
    """Decode, prefill, chunks and mixtures of them, over the head shapes, windows and gaps that occur."""
    decode, prefill = ((1, 1), (1, 40), (1, 16), (1, 17)), ((5, 5), (16, 16), (33, 33))
    chunks, mixed = ((7, 30), (16, 48), (1, 20)), ((1, 50), (1, 3), (1, 1), (19, 19), (4, 36))
    for rows in (decode, prefill, chunks, mixed):
        yield AttentionCase(rows)
        yield AttentionCase(rows, window=9)
        yield AttentionCase(rows, softcap=0.7)
        yield AttentionCase(rows, kv_heads=6, head_dim=20, block_size=32)
        yield AttentionCase(rows, kv_heads=1, block_size=1, dtype="bfloat16")
        yield AttentionCase(rows, padding=3)
        yield AttentionCase(rows, stride=max(tokens for tokens, _ in rows) + 2, padding=2)


@dataclass
class AttentionTrial:
    """A backend's layer over a cache of its own layout. The rows' pasts are written through the layer itself."""

    backend: AttentionBackend
    case: AttentionCase
    seed: int = 0
    index_dtype: str = "int32"
    caches: list[Sequence[Tensor]] = field(init=False)

    def __post_init__(self) -> None:
        case, spec = self.case, self.case.spec()
        random = torch.Generator().manual_seed(self.seed)

        def heads(tokens: int, number: int) -> Tensor:
            return torch.randn(tokens, number, case.head_dim, generator=random).to(torch_dtype(case.dtype))

        self.keys, self.values = ([heads(length, case.kv_heads) for _, length in case.rows] for _ in range(2))
        self.queries = [heads(tokens, case.heads) for tokens, _ in case.rows]
        blocks = [-(-length // case.block_size) for _, length in case.rows]
        order = torch.randperm(sum(blocks), generator=random) + 1
        self.tables = [part.tolist() for part in order.split(blocks)]
        layout = self.backend.kv_cache_layout(spec.cache, case.block_size)
        planes = ((plane.shape, torch_dtype(plane.dtype)) for plane in layout.planes)
        self.caches = [tuple(torch.full((sum(blocks) + 3, *shape), torch.nan, dtype=dtype) for shape, dtype in planes)]
        device = HostDevice(torch, MemoryFigures(0, 0, host=True))
        layer = self.backend.bind(spec, {}, BoundOps(REFERENCE, device), device)
        assert isinstance(layer, AttentionLayer)
        self.layer = layer

    def run(self) -> list[Tensor]:
        """By row [tokens, H, D]: the pasts written, then the launch itself."""
        case = self.case
        pasts = [(length - tokens, length - tokens) for tokens, length in case.rows]
        known = [(tokens, length, row) for row, (tokens, length) in enumerate(pasts) if tokens]
        if known:
            self._write(known)
        launch, starts = self._write([(*grant, row) for row, grant in enumerate(case.rows)])
        q = self._laid(launch, starts, self.queries, case.heads)
        mixed = self.layer.attend(q, self.caches, launch.plans[0])
        return [mixed[start : start + tokens] for start, (tokens, _) in zip(starts, case.rows, strict=True)]

    def expected(self) -> list[Tensor]:
        """The definition, in float64, a query and a head at a time."""
        case, results = self.case, []
        for q, k, v in zip(self.queries, self.keys, self.values, strict=True):
            result = torch.empty(q.shape, dtype=torch.float64)
            for i in range(len(q)):
                end = len(k) - len(q) + i + 1
                first = 0 if case.window is None else max(0, end - case.window)
                for head in range(case.heads):
                    shared = head * case.kv_heads // case.heads
                    scores = k[first:end, shared].double() @ q[i, head].double() * case.head_dim**-0.5
                    if case.softcap is not None:
                        scores = torch.tanh(scores / case.softcap) * case.softcap
                    result[i, head] = torch.softmax(scores, 0) @ v[first:end, shared].double()
            results.append(result)
        return results

    def _write(self, grants: list[tuple[int, int, int]]) -> tuple[Launch, list[int]]:
        """Keys and values of grants (tokens, length after, row) into their blocks."""
        launch, starts = self.launch(grants)
        ends = [(length - tokens, length, row) for tokens, length, row in grants]
        k, v = (
            self._laid(launch, starts, [every[row][first:last] for first, last, row in ends], self.case.kv_heads)
            for every in (self.keys, self.values)
        )
        self.layer.write(k, v, self.caches, launch.plans[0])
        return launch, starts

    def _laid(self, launch: Launch, starts: list[int], parts: list[Tensor], heads: int) -> Tensor:
        """Rows' tensors where the launch has them, NaN in between."""
        whole = torch.full(
            (launch.key.tokens, heads, self.case.head_dim), torch.nan, dtype=torch_dtype(self.case.dtype)
        )
        for start, part in zip(starts, parts, strict=True):
            whole[start : start + len(part)] = part
        return whole

    def launch(self, grants: list[tuple[int, int, int]]) -> tuple[Launch, list[int]]:
        """Of grants (tokens, length after, row), with its plan, and where each row's tokens start in it."""
        case, padding = self.case, self.case.padding
        lengths = [tokens for tokens, _, _ in grants]
        stride = case.stride if case.stride >= max(lengths) else 0
        starts = [stride * i if stride else sum(lengths[:i]) for i in range(len(grants))]
        rows, tokens = len(grants) + padding, (stride * len(grants) if stride else sum(lengths)) + padding
        width, columns = max(lengths), max(len(self.tables[row]) for *_, row in grants) + 1
        table = np.zeros((rows, columns), self.index_dtype)
        slots = np.zeros(tokens, self.index_dtype)
        positions = np.zeros(tokens, np.int32)
        for i, (count, length, row) in enumerate(grants):
            table[i, : len(self.tables[row])] = self.tables[row]
            if case.window is not None:  # what is behind it was given back
                table[i, : max(length - count - case.window + 1, 0) // case.block_size] = 0
            at = np.arange(length - count, length)
            positions[starts[i] : starts[i] + count] = at
            slots[starts[i] : starts[i] + count] = (
                table[i, at // case.block_size] * case.block_size + at % case.block_size
            )
        q_len, kv_len, q_start = (np.zeros(rows, np.int32) for _ in range(3))
        q_len[: len(grants)], q_start[: len(grants)] = lengths, starts
        kv_len[: len(grants)] = [length for _, length, _ in grants]
        tensor = torch.from_numpy
        launch = Launch(
            key=LaunchKey("mixed", rows, width, columns, tokens),
            num_rows=len(grants),
            num_tokens=sum(lengths),
            rows=torch.arange(rows),
            tokens=torch.zeros(tokens, dtype=torch.int32),
            positions=tensor(positions),
            q_start=tensor(q_start),
            q_len=tensor(q_len),
            kv_len=tensor(kv_len),
            kv_len_host=kv_len,
            q_len_host=q_len,
            host_lengths="exact",
            slots=[tensor(slots)],
            block_tables=[tensor(table)],
            sample_at=tensor(np.where(q_len > 0, q_start + q_len - 1, 0)),
            block_sizes=(case.block_size,),
            windows=(case.window,),
        )
        launch.plans = [self.backend.plan(launch, 0, None)]
        return launch, starts
