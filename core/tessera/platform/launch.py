"""A step on the device: what it may hold, how it is cut into launches, and what a launch is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

from tessera.arrays import Array
from tessera.platform.platform import Reason, Tensor

if TYPE_CHECKING:
    from tessera.platform.attention import Plan


@dataclass(frozen=True)
class StepRules:
    """What one step may hold on this device, as data for the scheduler. chunk_multiple: a prompt is cut only at
    multiples of it. fixed_rows: rows keep their place. tokens_per_grant: most tokens of one row."""

    mix_prefill_decode: bool = True
    max_prefill_rows: int | None = None
    chunk_multiple: int = 1
    max_rows: int | None = None
    fixed_rows: bool = False
    tokens_per_grant: int | None = None


class RequestView(Protocol):
    """What a resource or a policy sees of a request."""

    @property
    def key(self) -> int: ...
    @property
    def num_prompt(self) -> int: ...
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
    """Something a step has only so much of. schedule() composes them.

    held "request": asked when a request starts, released when it leaves its row (finished, preempted, aborted). held
    "step": asked for every grant, given back by begin_step(). Who gets nothing while nothing is under way ends with an
    error, since nothing would ever change that.
    """

    name: str
    held: Literal["request", "step"] = "request"

    def begin_step(self) -> None:
        """Default: nothing."""

    @abstractmethod
    def fits(self, request: RequestView, grant: int) -> int | Reason:
        """How much of the grant it has room for, at least 1 token, or why not."""

    @abstractmethod
    def take(self, request: RequestView, grant: int) -> None:
        """The grant that fits() allowed is made. grant: tokens; for what is held "request" this comes once a
        request."""

    @abstractmethod
    def release(self, request: RequestView) -> None:
        """The request leaves its row. Only called for what is held "request"."""


Kind = Literal["decode", "verify", "prefill", "mixed", "encode"]

ALL_POSITIONS = "all_positions"
"""A bit of a launch key: sample_at is followed by all T tokens. Core sets it where a row asks for the hidden state of
each of its tokens; such launches are not among the captured ones."""


@dataclass(frozen=True)
class LaunchKey:
    """The shape of a launch, padding included. rows; width: tokens of the longest row; tokens: in all; blocks: columns
    of a block table in the group that needs most. bits: features that change the program."""

    kind: Kind
    rows: int
    width: int
    blocks: int
    tokens: int
    bits: frozenset[str] = frozenset()

    @property
    def one_token_each(self) -> bool:
        """Row i is token i, and no other token's hidden state is asked for."""
        return self.width == 1 and self.tokens == self.rows and ALL_POSITIONS not in self.bits


@dataclass(frozen=True)
class StepShape:
    """A step's rows, ordered decode, verify, prefill: tokens to compute of each, tokens in the cache after, blocks each
    needs in the group that needs most."""

    num_decode: int
    num_verify: int
    q_len: Array
    kv_len: Array
    blocks: Array
    bits: frozenset[str] = frozenset()


@dataclass(frozen=True)
class LaunchShape:
    """Rows first..last of the step in one launch. stride: tokens between the starts of rows; 0: one after the other."""

    key: LaunchKey
    first: int
    last: int
    stride: int = 0


class ShapePolicy(ABC):
    """The only place that splits a step into launches or pads one."""

    @abstractmethod
    def launches(self, step: StepShape) -> Sequence[LaunchShape]:
        """How a step is cut: every row in exactly one launch, in the order of the step, each with the shape
        that it is padded to. Where keys() is not empty, each launch has one of its keys."""

    @abstractmethod
    def keys(self) -> Sequence[LaunchKey]:
        """The bounded set that warm-up walks, without bits: core adds those of the features that are on, which
        launches() finds in its step. Empty where shapes are not bounded."""


class ExactShapes(ShapePolicy):
    """One launch a step, of exactly its shape."""

    def launches(self, step: StepShape) -> Sequence[LaunchShape]:
        rows = len(step.q_len)
        kind: Kind = (
            "decode" if rows == step.num_decode else "prefill" if step.num_decode + step.num_verify == 0 else "mixed"
        )
        width, tokens = (1, rows) if kind == "decode" else (int(step.q_len.max()), int(step.q_len.sum()))
        key = LaunchKey(kind, rows, width, int(step.blocks.max()), tokens, step.bits)
        return [LaunchShape(key, 0, rows)]

    def keys(self) -> Sequence[LaunchKey]:
        return ()


@dataclass
class Launch:
    """One forward. Rows are ordered decode, verify, prefill; padding may lie between requests and at the end. Block 0
    of every group is null and takes padded writes; row `num_rows` and on are padding, with q_len and kv_len 0.

    R = key.rows, T = key.tokens, S = rows that sample. rows [R]: places in the row state. tokens, positions [T]
    (positions [3, T] for some models). q_start, q_len, kv_len [R]: first token of a row, its tokens, its tokens in the
    cache after this launch; on the device, always right. kv_len_host [R] int32 on the host: exact or an upper bound, as
    host_lengths says. q_len_host likewise, always exact. slots: by group [T], block * block size + offset.
    block_tables: by group [R, blocks]; null where all of a block lies behind the window of the row's first query, so
    what is read from there must not count, NaN included. A State group has [R, 1] tables and no slots. sample_at [S]:
    tokens whose hidden state is sampled; with the bit ALL_POSITIONS [S + T], all tokens after them. plans: by layer,
    made by its backend. windows: by group, tokens that a query sees, itself included; None: all before it.
    """

    key: LaunchKey
    num_rows: int
    num_tokens: int
    rows: Tensor
    tokens: Tensor
    positions: Tensor
    q_start: Tensor
    q_len: Tensor
    kv_len: Tensor
    kv_len_host: Array
    q_len_host: Array
    host_lengths: Literal["bound", "exact"]
    slots: Sequence[Tensor]
    block_tables: Sequence[Tensor]
    sample_at: Tensor
    block_sizes: Sequence[int] = ()
    plans: Sequence[Plan] = ()
    columns: dict[str, Tensor] = field(default_factory=dict)
    spans: Tensor | None = None
    tree: Tensor | None = None
    windows: Sequence[int | None] = ()

    def given_out(self, states: Tensor) -> Tensor:
        """Of states of all tokens [T, ...] those at sample_at."""
        return states if self.key.one_token_each else states[self.sample_at]


class Buffers(Protocol):
    """Persistent device tensors that keep their addresses between launches."""

    def get(self, name: str, shape: Sequence[int], dtype: str) -> Tensor:
        """A tensor of this shape at the start of the buffer of this name."""

    def put(self, name: str, values: Any, dtype: str) -> Tensor:
        """A host array copied into the buffer of this name; the device's tensor."""
