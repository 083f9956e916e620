"""Silver: a backend that keeps a state for each request, instead of keys and values, against the definition of that
mixer, over slots in which other requests have left theirs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from tessera.ops.tensors import torch_dtype
from tessera.platform.attention import AttentionBackend, AttentionGroup, LayerSpec, StateSpec
from tessera.platform.launch import Launch, LaunchKey
from tessera.platform.ops import BoundOps
from tessera.platform.selective_scan import ScanInput
from tessera.platform.wkv import WKVInput
from tessera.reference.delta_net import ReferenceGatedDeltaNet
from tessera.reference.kimi_delta import ReferenceKimiDelta
from tessera.reference.lightning import ReferenceLightningAttention
from tessera.reference.mamba import ReferenceMambaConvolution, ReferenceSelectiveScan
from tessera.reference.mamba2 import ReferenceMamba2
from tessera.reference.mlstm import ReferenceMLSTM
from tessera.reference.rg_lru import ReferenceRGLRU
from tessera.reference.short_convolution import ReferenceShortConvolution
from tessera.reference.state import ReferenceLinearAttention
from tessera.reference.token_shift import ReferenceTokenShift
from tessera.reference.wkv import ReferenceWKV
from tessera.runner.drafted_states import DraftedStates
from tessera.testing.compare import TOLERANCES, difference
from tessera.testing.conformance.case import PASSED, Case, ConformanceError, Verdict, absent, named
from tessera.testing.conformance.target import Target, reference_ops

_PADDING = 2  # rows, and tokens, at the end of each launch


@dataclass(frozen=True)
class Kind:
    """A kind of mixer, with sizes that divide nothing."""

    # LayerSpec.kind
    name: str
    # the backend that defines it
    reference: type[AttentionBackend]
    # of LayerSpec
    heads: int
    kv_heads: int
    head_dim: int
    # elements of x
    inputs: int
    # the planes: (name, shape)
    state: Sequence[tuple[str, tuple[int, ...]]]
    # of LayerSpec
    options: Sequence[tuple[str, float]] = ()
    # of the layer: shapes by name
    weights: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    # in the names of its cases, where a mixer has several
    variant: str = ""
    # x [T, inputs] as the mixer takes it
    divide: Callable[[Tensor], Any] = lambda x: x

    @property
    def cache(self) -> StateSpec:
        return StateSpec(tuple(self.state), "float32")

    def spec(self, dtype: str) -> LayerSpec:
        shape = self.heads, self.kv_heads, self.head_dim, self.head_dim**-0.5
        return LayerSpec(0, self.name, *shape, dtype, self.cache, options=tuple(self.options))


_MAMBA2 = Kind(
    "mamba2",
    ReferenceMamba2,
    heads=6,
    kv_heads=2,
    head_dim=14,
    inputs=84 + 124 + 6,
    state=[("conv", (124, 3)), ("state", (6, 14, 10))],
    options=[("state_dim", 10), ("kernel", 4), ("eps", 1e-5)],
    weights={"conv": (124, 4), "conv_bias": (124,), "a_log": (6,), "d": (6,), "dt_bias": (6,), "norm": (84,)},
)
KINDS = (
    Kind("linear_attention", ReferenceLinearAttention, 3, 3, 16, 3 * 3 * 16, [("state", (3, 16, 16))]),
    Kind(
        "gated_delta_net",
        ReferenceGatedDeltaNet,
        heads=6,
        kv_heads=2,
        head_dim=14,
        inputs=2 * 2 * 10 + 2 * 6 * 14 + 2 * 6,
        state=[("conv", (124, 3)), ("state", (6, 10, 14))],
        options=[("key_dim", 10), ("kernel", 4), ("eps", 1e-6), ("beta_scale", 2.0)],
        weights={"conv": (124, 4), "a_log": (6,), "dt_bias": (6,), "norm": (14,)},
    ),
    Kind(
        "kimi_delta_attention",
        ReferenceKimiDelta,
        heads=3,
        kv_heads=3,
        head_dim=14,
        inputs=5 * 3 * 14 + 3,
        state=[("conv", (126, 3)), ("state", (3, 14, 14))],
        options=[("kernel", 4), ("eps", 1e-5)],
        weights={"conv": (126, 4), "a_log": (3,), "dt_bias": (42,), "norm": (14,)},
    ),
    Kind(
        "lightning_attention",
        ReferenceLightningAttention,
        heads=3,
        kv_heads=3,
        head_dim=14,
        inputs=3 * 3 * 14,
        state=[("state", (3, 14, 14))],
        weights={"log_decay": (3,)},
    ),
    Kind(
        "short_convolution",
        ReferenceShortConvolution,
        heads=1,
        kv_heads=1,
        head_dim=90,
        inputs=3 * 90,
        state=[("conv", (90, 2))],
        options=[("kernel", 3), ("bias", 1)],
        weights={"conv": (90, 3), "bias": (90,)},
    ),
    Kind(
        "mamba_convolution",
        ReferenceMambaConvolution,
        heads=1,
        kv_heads=1,
        head_dim=90,
        inputs=90,
        state=[("conv", (90, 3))],
        options=[("kernel", 4), ("bias", 1)],
        weights={"conv": (90, 4), "bias": (90,)},
    ),
    Kind(
        "selective_scan",
        ReferenceSelectiveScan,
        heads=1,
        kv_heads=1,
        head_dim=90,
        inputs=3 * 90 + 2 * 10,
        state=[("state", (90, 10))],
        options=[("state_dim", 10)],
        weights={"a_log": (90, 10), "d": (90,), "dt_bias": (90,)},
        divide=lambda x: ScanInput(*x.split((90, 90, 90, 10, 10), dim=-1)),
    ),
    Kind(
        "rg_lru",
        ReferenceRGLRU,
        heads=6,
        kv_heads=6,
        head_dim=14,
        inputs=2 * 84,
        state=[("conv", (84, 3)), ("state", (84,))],
        options=[("kernel", 4)],
        weights={
            "conv": (84, 4),
            "conv_bias": (84,),
            "a_param": (84,),
            "input_gate": (6, 14, 14),
            "input_gate_bias": (6, 14),
            "recurrence_gate": (6, 14, 14),
            "recurrence_gate_bias": (6, 14),
        },
    ),
    Kind(
        "mlstm",
        ReferenceMLSTM,
        heads=3,
        kv_heads=3,
        head_dim=14,
        inputs=3 * (2 * 10 + 2 * 14 + 2),
        state=[("state", (3, 10, 15)), ("largest", (3,))],
        options=[("key_dim", 10), ("cap", 3.0), ("eps", 1e-3), ("state_eps", 0.1)],
        weights={"gate_bias": (6,), "norm": (42,)},
    ),
    Kind(
        "token_shift",
        ReferenceTokenShift,
        heads=1,
        kv_heads=1,
        head_dim=90,
        inputs=90,
        state=[("last", (90, 1))],
        options=[("mixes", 3)],
        weights={"mix": (3, 90)},
    ),
    Kind(
        "wkv",
        ReferenceWKV,
        heads=1,
        kv_heads=1,
        head_dim=90,
        inputs=2 * 90,
        state=[("sums", (3, 90))],
        weights={"decay": (90,), "bonus": (90,)},
        divide=lambda x: WKVInput(*x.split(90, dim=-1)),
    ),
    _MAMBA2,
    replace(
        _MAMBA2,
        variant="-multipliers",
        options=[*_MAMBA2.options, ("normed", 0), ("multiplied", 1)],
        weights={**_MAMBA2.weights, "multipliers": (84 + 124 + 6,)},
    ),
    replace(_MAMBA2, variant="-gate-last", options=[*_MAMBA2.options, ("gate_first", 0)]),
    replace(_MAMBA2, variant="-limits", options=[*_MAMBA2.options, ("dt_min", 0.4), ("dt_max", 1.1)]),
)


@dataclass(frozen=True)
class Row:
    """slot: of the request. tokens: to compute, behind `before` others. spare: slots of the states behind its drafts,
    if some of the tokens are drafts."""

    slot: int
    tokens: int
    before: int
    spare: tuple[int, ...] = ()


_LAUNCHES: Sequence[tuple[str, Sequence[Row]]] = (
    ("prompts", (Row(3, 19, 0), Row(1, 5, 0))),
    ("a row that decodes, a chunk and a new prompt", (Row(3, 1, 19), Row(1, 70, 5), Row(2, 4, 0))),
    ("rows that decode", (Row(1, 1, 75), Row(2, 1, 4), Row(3, 1, 20))),
    ("a new prompt in the slot of a request that has ended", (Row(1, 1, 76), Row(3, 7, 0))),
    ("a single row that decodes", (Row(3, 1, 7),)),
)
_DRAFTED = Row(1, 4, 77, (4, 5, 6)), Row(3, 1, 8), Row(2, 3, 5, (7, 8))
"""A launch that verifies drafts behind these launches: two of the first row's are right, and none of the last one's."""
_RIGHT = Row(1, 3, 77), Row(3, 1, 8), Row(2, 1, 5)
_NEXT = Row(1, 1, 80), Row(3, 1, 9), Row(2, 1, 6)
_COLUMNS = 1 + max(len(row.spare) for row in _DRAFTED)
_STATES = 5, 3, 2
"""Slots of the rows' states when the drafts are verified."""


def takes_states(backend: AttentionBackend, dtype: str) -> bool:
    """Whether it supports a kind of mixer that core defines."""
    return any(backend.supports(kind.spec(dtype)) is None for kind in KINDS)


def state_cases(target: Target) -> Iterator[Case]:
    """One for each dtype of a backend that supports a kind of mixer that core defines."""
    if target.brings_a_runner:
        return
    for kind in KINDS:
        for backend in target.attention_backends:
            for dtype in target.platform.capabilities.dtypes:
                if backend.supports(kind.spec(dtype)) is None:
                    check = partial(_check, target, backend, kind, dtype)
                    yield Case(f"state/{backend.name}{kind.variant}-{dtype}", "silver", "state", check)


def _check(target: Target, backend: AttentionBackend, kind: Kind, dtype: str) -> Verdict:
    if target.shaping(kind.spec(dtype), 128) is not None:
        return absent("states are tried with launches of exact shapes")
    drafted = DraftedStates(backend)
    own = StateTrial(drafted, kind, dtype, target.bound(), target.platform.capabilities.index_dtype)
    reference = StateTrial(kind.reference(), kind, dtype, reference_ops(), "int32")
    for what, found, expected in (*_launches(own, reference), *_drafts(own, reference)):
        text = difference(found, expected, TOLERANCES[dtype])
        if text is not None:
            raise ConformanceError(
                f"{kind.name}{kind.variant}, {what}, {dtype}: {text}", named(result=found, expected=expected)
            )
    return PASSED


def _launches(trial: StateTrial, reference: StateTrial) -> Iterator[tuple[str, Tensor, Tensor]]:
    """What each launch is, its result, and the right one."""
    for number, (what, rows) in enumerate(_LAUNCHES):
        yield what, trial.launched(rows, number), reference.launched(rows, number)


def _drafts(trial: StateTrial, reference: StateTrial) -> Iterator[tuple[str, Tensor, Tensor]]:
    """A launch that verifies drafts, whose tokens the reference computes as a chunk of each row in slots that are then
    of no use; then a token behind those that were right."""
    seed = len(_LAUNCHES)
    x = reference.inputs(_DRAFTED, seed)
    for row, slot in zip(_DRAFTED, (4, 7, 8), strict=True):
        reference.copy(row.slot, slot)
    chunks = [replace(row, slot=slot, spare=()) for row, slot in zip(_DRAFTED, (4, 7, 8), strict=True)]
    yield "drafts", trial.computed(_DRAFTED, x), reference.computed(chunks, x)
    parts = x.split([row.tokens for row in _DRAFTED])
    reference.computed(_RIGHT, torch.cat([part[: row.tokens] for row, part in zip(_RIGHT, parts, strict=True)]))
    rows = [replace(row, slot=slot) for row, slot in zip(_NEXT, _STATES, strict=True)]
    yield "behind drafts", trial.launched(rows, seed + 1), reference.launched(_NEXT, seed + 1)


class StateTrial:
    """A backend's layer and its slots, which hold NaN until a request writes into them."""

    def __init__(self, backend: AttentionBackend, kind: Kind, dtype: str, ops: BoundOps, index_dtype: str) -> None:
        self.backend, self.kind, self.dtype, self.index_dtype = backend, kind, dtype, index_dtype
        self.target: Any = ops.device.target
        slots = 1 + max(max(row.slot, *row.spare) for row in _DRAFTED if row.spare)
        self.planes = tuple(
            torch.full((slots, plane.nbytes), 255, dtype=torch.uint8, device=self.target)
            .view(torch_dtype(plane.dtype))
            .unflatten(1, plane.shape)
            for plane in backend.kv_cache_layout(kind.cache, 0).planes
        )
        spec = kind.spec(dtype)
        self.group = AttentionGroup(spec, (0,), 0, "trial", ops.device)
        random = torch.Generator().manual_seed(5)
        weights = {name: torch.rand(shape, generator=random) - 0.3 for name, shape in kind.weights.items()}
        on_device = {name: weight.to(self.target) for name, weight in weights.items()}
        self.layer = backend.bind(spec, on_device, ops, ops.device)

    def launched(self, rows: Sequence[Row], seed: int) -> Tensor:
        """What the layer returns for random tokens of the rows, on the host."""
        return self.computed(rows, self.inputs(rows, seed))

    def inputs(self, rows: Sequence[Row], seed: int) -> Tensor:
        """Random tokens of the rows [tokens, inputs]."""
        random = torch.Generator().manual_seed(seed)
        return torch.randn(sum(row.tokens for row in rows), self.kind.inputs, generator=random)

    def copy(self, slot: int, target: int) -> None:
        """Copies the state in a slot."""
        for plane in self.planes:
            plane[target] = plane[slot]

    def computed(self, rows: Sequence[Row], x: Tensor) -> Tensor:
        """What the layer returns for the rows' tokens x, on the host."""
        launch = self.launch(rows)
        launch.plans = [self.backend.plan(launch, self.group, None)]
        padding = torch.full((_PADDING, self.kind.inputs), torch.nan)
        padded = torch.cat([x, padding.to(x.dtype)]).to(torch_dtype(self.dtype))
        divided = self.kind.divide(padded.to(self.target))
        mixed: Tensor = self.layer.fused(divided, launch.positions, [self.planes], launch.plans[0])
        return mixed[: launch.num_tokens].cpu()

    def launch(self, rows: Sequence[Row]) -> Launch:
        """A launch of the rows, with padding behind them."""
        lengths = np.array([row.tokens for row in rows] + [0] * _PADDING, np.int32)
        after = np.array([row.before + row.tokens for row in rows] + [0] * _PADDING, np.int32)
        kind: Literal["verify", "mixed"] = "verify" if any(row.spare for row in rows) else "mixed"
        slots = np.zeros((len(lengths), _COLUMNS), self.index_dtype)
        for place, row in enumerate(rows):
            slots[place, : 1 + len(row.spare)] = row.slot, *row.spare
        starts = np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)
        total = int(lengths.sum())
        positions = np.concatenate(
            [np.arange(row.before, row.before + row.tokens) for row in rows] + [np.zeros(_PADDING)]
        )

        def tensor(values: Any) -> Tensor:
            return torch.from_numpy(np.ascontiguousarray(values)).to(self.target)

        return Launch(
            key=LaunchKey(kind, len(lengths), int(lengths.max()), 1, total + _PADDING),
            num_rows=len(rows),
            num_tokens=total,
            rows=tensor(np.arange(len(lengths))),
            tokens=tensor(np.zeros(total + _PADDING, np.int32)),
            positions=tensor(positions.astype(np.int32)),
            query_start_loc=tensor(starts),
            query_lens=tensor(lengths),
            seq_lens=tensor(after),
            seq_lens_host=after,
            rows_host=np.arange(len(lengths), dtype=np.int32),
            query_start_loc_host=starts,
            query_lens_host=lengths,
            slot_mapping=[None],
            block_tables=[tensor(slots)],
            logits_indices=tensor(np.maximum(starts[1:] - 1, 0)),
            block_tables_host=[slots.astype(np.int32)],
            block_sizes=(0,),
            windows=(None,),
        )
