"""What mixers that keep a state for each request share: where the state is, which rows go token by token and which in
chunks, and what a step of time is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from tessera.platform import (
    AttentionBackend,
    AttentionGroup,
    Buffers,
    CacheConstraints,
    CacheSpec,
    KVLayout,
    Launch,
    LayerSpec,
    Mixer,
    Plane,
    Reason,
    StateSpec,
)
from tessera_triton.facts import DeviceFacts, Launcher

CHUNK = 32
"""Tokens of a chunk."""

_IN_CHUNKS = ("bfloat16", "float16")
"""Dtypes of layers whose rows go in chunks. Float32, which few devices multiply by matrix instructions, goes token by
token."""

_DTYPES = ("bfloat16", "float16", "float32")
_MOST_TAPS = 8  # tokens that a convolution sees
_FEW = 8  # tokens of rows that go token by token
_THREADS = 256  # of a program that computes chunks; its operands find no room in the registers of fewer


@triton.jit
def softplus(x) -> Any:
    """log(1 + exp(x)). What 1 + y rounds off of a small y is made good: log(1 + y) is y log(w) / (w - 1), w = 1 + y
    as rounded."""
    y = tl.exp(-tl.abs(x))
    w = 1.0 + y
    log = tl.where(w == 1.0, y, tl.log(w) * (y / tl.where(w == 1.0, 1.0, w - 1.0)))
    return tl.maximum(x, 0.0) + log


@dataclass(frozen=True)
class StatePlan:
    """The tensors of a launch, and what its shape says."""

    # block_tables of the launch [R, 1]: slots
    table: Tensor
    # query_start_loc of the launch
    starts: Tensor
    # query_lens of the launch
    lengths: Tensor
    # seq_lens of the launch
    ends: Tensor
    # of the launch, padding included
    rows: int
    # of the launch, padding included
    tokens: int
    # tokens of the longest row
    width: int
    # how many rows, counted from the first, go token by token; others go in chunks
    few: int
    # where the next row's tokens start
    others_start: int
    # whether row i has token i, or none, and then gets zeros
    fills: bool
    # whether some tokens may be no row's, and nothing is written there
    padded: bool

    @property
    def chunks(self) -> int:
        """The most chunks that the rows have which go in such."""
        if self.few == self.rows:
            return 0
        return (self.tokens - 1) // CHUNK - self.others_start // CHUNK + self.rows - self.few

    @property
    def arguments(self) -> tuple[Any, ...]:
        """Of kernels: table, table_row, starts, lengths and ends."""
        return self.table, self.table.stride(0), self.starts, self.lengths, self.ends

    def blank(self, x: Tensor, width: int, dtype: torch.dtype) -> Tensor:
        """[T, width] for results, on the device of x. Zeros where nothing may be written."""
        make = torch.zeros if self.padded else torch.empty
        return make(self.tokens, width, dtype=dtype, device=x.device)


class TritonState(AttentionBackend):
    """A mixer of one kind over a StateSpec in float32, whose planes are the state's tensors."""

    # LayerSpec.kind
    kind: str

    def __init__(self, facts: DeviceFacts, launch: Launcher | None = None) -> None:
        self.facts, self.launch = facts, launch or Launcher()

    def supports(self, spec: LayerSpec) -> Reason | None:
        if spec.kind != self.kind or not isinstance(spec.cache, StateSpec):
            return f"no {self.kind.replace('_', ' ')} over {spec.kind}"
        if spec.dtype not in _DTYPES:
            return f"no kernels for {spec.dtype}"
        if spec.cache.dtype != "float32":
            return f"a state in {spec.cache.dtype}, not in float32"
        taps = int(dict(spec.options)["kernel"])
        return f"a convolution over {taps} tokens, more than {_MOST_TAPS}" if taps > _MOST_TAPS else None

    def constraints(self, spec: LayerSpec) -> CacheConstraints:
        return CacheConstraints(block_sizes=(1,), align_bytes=16)

    def kv_cache_layout(self, spec: CacheSpec, block_size: int) -> KVLayout:
        assert isinstance(spec, StateSpec)
        axes = ((name, [(f"{name}{i}", n) for i, n in enumerate(shape)]) for name, shape in spec.shapes)
        return KVLayout(tuple(Plane(name, spec.dtype, tuple(each)) for name, each in axes))

    def plan(self, launch: Launch, group: AttentionGroup, buffers: Buffers | None) -> StatePlan:
        """The tensors are those of the launch, which keep their addresses. What is captured must hold for all launches
        of its shape; one that runs eagerly may look at the lengths of its rows."""
        key, few, others_start = launch.key, 0, 0
        if key.width <= _FEW or group.spec.dtype not in _IN_CHUNKS:
            few = key.rows
        elif buffers is None:
            single = launch.query_lens_host[: launch.num_rows] == 1
            few = launch.num_rows if single.all() else int(single.argmin())
            others_start = int(launch.query_start_loc_host[few])
        fills = key.rows == key.tokens and key.width == 1
        return StatePlan(
            launch.block_tables[group.number],
            launch.query_start_loc,
            launch.query_lens,
            launch.seq_lens,
            key.rows,
            key.tokens,
            key.width,
            few,
            others_start,
            fills,
            not fills and (buffers is not None or key.tokens != launch.num_tokens),
        )


class StateLayer(Mixer):
    """weights: as the kind's reference has them, in float32."""

    def __init__(self, spec: LayerSpec, weights: Mapping[str, Tensor], facts: DeviceFacts, launch: Launcher) -> None:
        self.spec, self.weights, self.facts, self.launch = spec, weights, facts, launch
        self.options = dict(spec.options)
        self.taps = int(self.options["kernel"])
        # Of a program that computes chunks.
        self.warps: int = _THREADS // facts.warp_size
