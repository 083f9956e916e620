"""A step on the device: what it may hold, how it is split into launches, and what a launch is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from tessera.arrays import Array
from tessera.platform.device import Reason, Tensor

Plan = Any
"""What an attention backend computed once for one cache group of one launch."""


@dataclass(frozen=True)
class StepRules:
    """What one step may hold on this device; data for the scheduler.

    mix_prefill_decode: prompts and decoding rows may share a step. max_prefill_rows: rows that compute more than one
    token. chunk_multiple: a prompt is cut only at multiples of this many tokens. max_rows: rows in all.
    max_tokens_per_request: tokens of one request.
    """

    mix_prefill_decode: bool = True
    max_prefill_rows: int | None = None
    chunk_multiple: int = 1
    max_rows: int | None = None
    max_tokens_per_request: int | None = None


class RequestView(Protocol):
    """What a resource or a scheduling policy sees of a request."""

    @property
    def key(self) -> int: ...
    @property
    def num_prompt_tokens(self) -> int: ...
    @property
    def num_tokens(self) -> int: ...
    @property
    def num_computed_tokens(self) -> int: ...
    @property
    def priority(self) -> int: ...
    @property
    def arrival(self) -> float: ...
    @property
    def adapter(self) -> str: ...
    @property
    def tenant(self) -> str: ...


class Resource(ABC):
    """Something a step has only so much of, beside tokens, rows and KV blocks. The scheduler asks every resource.

    held "request": asked when a request starts; released when it leaves its row (finished, preempted or aborted).
    held "step": asked each time a request is scheduled; begin_step() resets it. A request that gets nothing while no
    step is in flight fails, because nothing would ever change that.
    """

    name: str
    held: Literal["request", "step"] = "request"

    def begin_step(self) -> None:
        """A new step is being scheduled. Default: nothing."""

    @abstractmethod
    def fits(self, request: RequestView, num_tokens: int) -> int | Reason:
        """How many of num_tokens there is room for, at least 1; or why there is none."""

    @abstractmethod
    def take(self, request: RequestView, num_tokens: int) -> None:
        """The request is scheduled with num_tokens tokens, which fits() allowed. Where held is "request", called once
        a request."""

    @abstractmethod
    def release(self, request: RequestView) -> None:
        """The request leaves its row. Called only where held is "request"."""


Kind = Literal["decode", "prefill", "mixed"]

ALL_POSITIONS = "all_positions"
"""A bit of a launch key: the launch gives out the hidden state of every token, so logits_indices holds all T tokens
after its first S entries. Core sets it where a request wants prompt_logprobs; such launches are never captured."""


@dataclass(frozen=True)
class LaunchKey:
    """The shape of a launch, padding included.

    rows; width: tokens of the longest row; tokens: in all; blocks: columns of the block table in the cache group that
    needs most. bits: features that change the program.
    """

    kind: Kind
    rows: int
    width: int
    blocks: int
    tokens: int
    bits: frozenset[str] = frozenset()

    @property
    def one_token_each(self) -> bool:
        """Row i is token i, and no other token's hidden state is wanted."""
        return self.width == 1 and self.tokens == self.rows and ALL_POSITIONS not in self.bits


@dataclass(frozen=True)
class StepShape:
    """The rows of a step, those that decode first. query_lens [R]: tokens to compute; seq_lens [R]: tokens in the
    cache afterwards; blocks [R]: blocks in the cache group that needs most (all int32, on the host)."""

    num_decode: int
    query_lens: Array
    seq_lens: Array
    blocks: Array
    bits: frozenset[str] = frozenset()


@dataclass(frozen=True)
class LaunchShape:
    """Rows first..last of the step in one launch. stride: tokens between the starts of two rows; 0: no gaps."""

    key: LaunchKey
    first: int
    last: int
    stride: int = 0


class ShapePolicy(ABC):
    """The only place that splits a step into launches or pads one."""

    @abstractmethod
    def launches(self, step: StepShape) -> Sequence[LaunchShape]:
        """Splits a step: every row in exactly one launch, in the order of the step, each launch with the shape it is
        padded to. Where keys() is not empty, every launch has one of its keys."""

    @abstractmethod
    def keys(self) -> Sequence[LaunchKey]:
        """The bounded set of shapes that warm-up walks, without bits (core adds those of the features that are on).
        Empty where shapes are not bounded."""


class ExactShapes(ShapePolicy):
    """One launch a step, of exactly its shape."""

    def launches(self, step: StepShape) -> Sequence[LaunchShape]:
        rows = len(step.query_lens)
        kind: Kind = "decode" if rows == step.num_decode else "mixed" if step.num_decode else "prefill"
        width, tokens = (1, rows) if kind == "decode" else (int(step.query_lens.max()), int(step.query_lens.sum()))
        key = LaunchKey(kind, rows, width, int(step.blocks.max()), tokens, step.bits)
        return [LaunchShape(key, 0, rows)]

    def keys(self) -> Sequence[LaunchKey]:
        return ()


@dataclass
class Launch:
    """One forward. R = key.rows, T = key.tokens, S = rows whose logits are wanted; G = cache groups.

    Rows that decode come first. Padding may lie between rows and at the end: rows from num_rows on have query_lens and
    seq_lens 0. Block 0 of every group is null and takes the writes of padding.

    rows [R] int32: places in the row state. tokens [T] int32, positions [T] int32 ([3, T] for some models).
    query_start_loc [R + 1] int32: where each row's tokens start, and where the last row ends; row i has query_lens[i]
    tokens from there. query_lens [R] int32: tokens that a row computes. seq_lens [R] int32: its tokens in the cache
    after this launch. These three are on the device and exact. query_lens_host [R]: exact; seq_lens_host [R]: exact or
    an upper bound, as host_lengths says (int32, on the host).

    slot_mapping: by group [T], block * block size + offset of each token's keys and values. block_tables: by group
    [R, blocks]; 0 where a whole block lies behind the window of the row's first query, so what is read from there must
    not count, NaN included. A group of StateSpec has tables [R, 1] and no slots. Index dtype: that of
    Capabilities.index_dtype.

    logits_indices [S] int32: tokens whose hidden states become logits; with the bit ALL_POSITIONS [S + T], all tokens
    after them. plans: by layer, made by its backend. windows: by group, how many tokens a query sees, itself included;
    None: all before it. columns: the numbers that features keep for each row, by name [R].
    """

    key: LaunchKey
    num_rows: int
    num_tokens: int
    rows: Tensor
    tokens: Tensor
    positions: Tensor
    query_start_loc: Tensor
    query_lens: Tensor
    seq_lens: Tensor
    seq_lens_host: Array
    query_lens_host: Array
    host_lengths: Literal["bound", "exact"]
    slot_mapping: Sequence[Tensor]
    block_tables: Sequence[Tensor]
    logits_indices: Tensor
    block_sizes: Sequence[int] = ()
    plans: Sequence[Plan] = ()
    columns: dict[str, Tensor] = field(default_factory=dict)
    windows: Sequence[int | None] = ()

    def select_logits(self, states: Tensor) -> Tensor:
        """states [T, ...] -> those at logits_indices [S, ...]."""
        return states if self.key.one_token_each else states[self.logits_indices]


class Buffers(Protocol):
    """Device tensors by name that keep their addresses from launch to launch."""

    def get(self, name: str, shape: Sequence[int], dtype: str) -> Tensor:
        """A tensor of this shape at the start of the buffer of this name."""

    def put(self, name: str, values: Any, dtype: str) -> Tensor:
        """Copies a host array into the buffer of this name and returns the device's tensor."""
