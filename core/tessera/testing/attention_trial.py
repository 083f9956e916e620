"""A backend's layer over a cache in which all that is not written is NaN, and what attention over it must give."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tessera.platform.attention import AttentionBackend, AttentionLayer
from tessera.platform.launch import Launch, LaunchKey
from tessera.platform.ops import BoundOps
from tessera.reference import REFERENCE
from tessera.reference.dtypes import torch_dtype
from tessera.testing.attention_cases import AttentionCase
from tessera.testing.reference import host_device

SPARE = 3  # blocks that nobody has, the null block among them
_LOOSE = 5  # tokens by which a bound of a length is over it

Grant = tuple[int, int, int]
"""Tokens to compute, tokens in the cache after, row."""


@dataclass
class AttentionTrial:
    """A backend's layer over a cache of its own layout, on the device of `ops`. The rows' pasts are written through the
    layer itself. Results are on the host."""

    backend: AttentionBackend
    case: AttentionCase
    seed: int = 0
    index_dtype: str = "int32"
    ops: BoundOps = field(default_factory=lambda: BoundOps(REFERENCE, host_device()))
    caches: list[Sequence[Tensor]] = field(init=False)
    tables: list[list[int]] = field(init=False)

    def __post_init__(self) -> None:
        case, spec = self.case, self.case.spec()
        random = torch.Generator().manual_seed(self.seed)
        past = case.shared * case.block_size

        def heads(tokens: int, number: int) -> Tensor:
            return torch.randn(tokens, number, case.head_dim, generator=random).to(torch_dtype(case.dtype))

        self.keys, self.values = ([heads(length, case.kv_heads) for _, length in case.rows] for _ in range(2))
        for rows in (self.keys, self.values):
            for row in rows[1:]:
                row[:past] = rows[0][:past]
        self.queries = [heads(tokens, case.heads) for tokens, _ in case.rows]
        blocks = [-(-length // case.block_size) for _, length in case.rows]
        order = torch.randperm(sum(blocks), generator=random) + 1
        self.tables = [part.tolist() for part in order.split(blocks)]
        for table in self.tables[1:]:
            table[: case.shared] = self.tables[0][: case.shared]
        self.num_blocks = sum(blocks) + SPARE
        layout = self.backend.kv_cache_layout(spec.cache, case.block_size)
        self.caches = [
            tuple(
                torch.full(
                    (self.num_blocks, *plane.shape), torch.nan, dtype=torch_dtype(plane.dtype), device=self.target
                )
                for plane in layout.planes
            )
        ]
        layer = self.backend.bind(spec, {}, self.ops, self.ops.device)
        assert isinstance(layer, AttentionLayer)
        self.layer = layer

    @property
    def target(self) -> Any:
        return self.ops.device.target

    def run(self) -> list[Tensor]:
        """By row [tokens, H, D]: the pasts written, then the launch itself."""
        shared = self.case.shared * self.case.block_size
        past = [length - tokens for tokens, length in self.case.rows]
        known = [(tokens - (shared if row else 0), tokens, row) for row, tokens in enumerate(past)]
        known = [grant for grant in known if grant[0]]
        if known:
            self._write(known)
        self._write(self.grants)
        return self.attended()

    def attended(self, out: Tensor | None = None) -> list[Tensor]:
        """By row: the queries over what the cache holds. out: where the result goes."""
        launch, starts = self.launch(self.grants)
        mixed = self.layer.attend(self.laid(launch, starts, self.queries), self.caches, launch.plans[0], out)
        assert out is None or mixed is out, "the result is not what was given as out"
        mixed = mixed.cpu()
        return [mixed[start : start + tokens] for start, (tokens, _) in zip(starts, self.case.rows, strict=True)]

    @property
    def grants(self) -> list[Grant]:
        return [(*grant, row) for row, grant in enumerate(self.case.rows)]

    def expected(self) -> list[Tensor]:
        """The definition, in float64, a query at a time."""
        case, results = self.case, []
        for q, k, v in zip(self.queries, self.keys, self.values, strict=True):
            keys, values = (x.double().repeat_interleave(case.heads // case.kv_heads, 1) for x in (k, v))
            result = torch.empty(q.shape, dtype=torch.float64)
            for i, query in enumerate(q.double()):
                end = len(k) - len(q) + i + 1
                seen = slice(0 if case.window is None else max(0, end - case.window), end)
                scores = torch.einsum("khd,hd->hk", keys[seen], query) * case.head_dim**-0.5
                if case.softcap is not None:
                    scores = torch.tanh(scores / case.softcap) * case.softcap
                result[i] = torch.einsum("hk,khd->hd", torch.softmax(scores, -1), values[seen])
            results.append(result)
        return results

    def _write(self, grants: list[Grant]) -> None:
        """Keys and values of grants into their blocks."""
        launch, starts = self.launch(grants)
        ends = [(length - tokens, length, row) for tokens, length, row in grants]
        k, v = (
            self.laid(launch, starts, [every[row][first:last] for first, last, row in ends])
            for every in (self.keys, self.values)
        )
        self.layer.write(k, v, self.caches, launch.plans[0])

    def laid(self, launch: Launch, starts: list[int], parts: list[Tensor]) -> Tensor:
        """Rows' tensors where the launch has them, NaN in between."""
        whole = torch.full((launch.key.tokens, *parts[0].shape[1:]), torch.nan, dtype=parts[0].dtype)
        for start, part in zip(starts, parts, strict=True):
            whole[start : start + len(part)] = part
        return whole.to(self.target)

    def launch(self, grants: list[Grant]) -> tuple[Launch, list[int]]:
        """Of grants, with its plan, and where each row's tokens start in it. Lengths on the host are as exact as the
        backend asks."""
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
        exact = self.backend.constraints(case.spec()).host_lengths == "exact"

        def tensor(values: Any) -> Tensor:
            return torch.from_numpy(values).to(self.target)

        launch = Launch(
            key=LaunchKey("mixed", rows, width, columns, tokens),
            num_rows=len(grants),
            num_tokens=sum(lengths),
            rows=tensor(np.arange(rows)),
            tokens=tensor(np.zeros(tokens, np.int32)),
            positions=tensor(positions),
            q_start=tensor(q_start),
            q_len=tensor(q_len),
            kv_len=tensor(kv_len),
            kv_len_host=kv_len if exact else kv_len + _LOOSE,
            q_len_host=q_len,
            host_lengths="exact" if exact else "bound",
            slots=[tensor(slots)],
            block_tables=[tensor(table)],
            sample_at=tensor(np.where(q_len > 0, q_start + q_len - 1, 0)),
            block_sizes=(case.block_size,),
            windows=(case.window,),
        )
        launch.plans = [self.backend.plan(launch, 0, None)]
        return launch, starts
