"""A step on the device: what it may hold, and the inputs of a launch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol

from tessera.arrays import Array, int32
from tessera.platform.device import Reason, Tensor

if TYPE_CHECKING:
    from tessera.media.placed import PlacedMedia

Plan = Any
"""What an attention backend computes once per launch and AttentionGroup and uses in all layers of the group."""


@dataclass(frozen=True)
class StepRules:
    """What one step may hold on this device; data for the scheduler."""

    # whether prefill and decode rows may share a step
    mix_prefill_decode: bool = True
    # rows that compute more than one token, at most
    max_prefill_rows: int | None = None
    # tokens: a prompt is split only at multiples
    chunk_multiple: int = 1
    # rows in total, at most
    max_rows: int | None = None
    # tokens of one request, at most
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
    def feature_args(self) -> Mapping[str, str]: ...
    @property
    def tenant(self) -> str: ...
    @property
    def media(self) -> Sequence[PlacedMedia]: ...
    @property
    def pools(self) -> bool: ...  # it samples nothing and ends with its prompt


class Resource(ABC):
    """A limited resource of a step, besides tokens, rows and KV blocks. The scheduler asks every resource.

    If a resource refuses a request while no step is in flight, and prepares nothing for it, the request fails, because
    waiting would not help.
    """

    name: str
    # "request": taken when a request starts and released when it leaves its row (finished, preempted or aborted).
    # "step": taken each time a request is scheduled; begin_step() resets it
    # "prompt": as "step", by requests whose next token is one of the prompt
    scope: Literal["request", "step", "prompt"] = "request"

    def begin_step(self) -> None:
        """Called before each step is scheduled. Default: nothing."""

    @abstractmethod
    def fits(self, request: RequestView, num_tokens: int) -> int | Reason:
        """How many of num_tokens may be scheduled, from request.num_computed_tokens on, at least 1; or the reason why
        none may."""

    @abstractmethod
    def take(self, request: RequestView, num_tokens: int) -> None:
        """Called when the request is scheduled with num_tokens tokens, which fits() allowed. If scope is "request",
        called once per request."""

    def prepare(self, request: RequestView) -> bool:
        """Called when the request computes nothing in this step, since fits() allowed too little; only if scope is
        "step" or "prompt". Whether the step does something that the request waits for: it then keeps its row, and the
        step runs even if it computes no tokens. Default: it does not."""
        return False

    @abstractmethod
    def release(self, request: RequestView) -> None:
        """Called when the request leaves its row, and only if scope is "request"."""


Kind = Literal["decode", "prefill", "mixed", "verify"]
"""Of a launch. decode: rows of one token each. verify: rows that decode, some of them with drafts to verify."""

ALL_POSITIONS = "all_positions"
"""A bit of a launch key: the launch returns the hidden states of all tokens, so logits_indices holds all T tokens after
its first S entries. Core sets it if a request wants prompt_logprobs, or pools the states of several tokens. No key that
is captured has it; a graph that computes all states anyway may serve such launches."""


@dataclass(frozen=True)
class LaunchKey:
    """The shape of a launch, padding included."""

    # what it computes
    kind: Kind
    # number of rows
    rows: int
    # tokens of the longest row
    width: int
    # columns of the block table in the cache group that needs the most
    blocks: int
    # in total
    tokens: int
    # features that change the program
    bits: frozenset[str] = frozenset()

    @property
    def num_samples(self) -> int:
        """S: how many hidden states become logits, one of each row, or, in a launch that verifies, of each token."""
        return self.tokens if self.kind == "verify" else self.rows

    @property
    def samples_all(self) -> bool:
        """Whether the hidden states that become logits are those of all tokens, in order, and no others are wanted."""
        whole = self.kind == "verify" or (self.width == 1 and self.tokens == self.rows)
        return whole and ALL_POSITIONS not in self.bits


@dataclass
class Launch:
    """One forward. R = key.rows, T = key.tokens, S = key.num_samples, tokens whose logits are wanted; G = cache groups.

    Decode rows come first. There may be padding between rows and at the end: rows from num_rows on have query_lens and
    seq_lens 0. Block 0 of every group is the null block; padding writes go there. Slots and tables have the dtype
    Capabilities.index_dtype.
    """

    # its shape
    key: LaunchKey
    # without padding
    num_rows: int
    # without padding
    num_tokens: int
    # [R] int32: indices into the row state; padding has the null row, whose number is CachePlan.num_rows and whose
    # state nobody reads
    rows: Tensor
    # [T] int32: token ids
    tokens: Tensor
    # [T] int32 ([3, T] for some models)
    positions: Tensor
    # [R + 1] int32, exact: where each row's tokens start, and where the last row ends; row i has query_lens[i] tokens
    # from there
    query_start_loc: Tensor
    # [R] int32, exact: tokens that a row computes
    query_lens: Tensor
    # [R] int32, exact: a row's tokens in the cache after this launch
    seq_lens: Tensor
    # [R + 1] int32 on the host, exact
    query_start_loc_host: Array
    # [R] int32 on the host, exact
    query_lens_host: Array
    # [R] int32 on the host, exact
    seq_lens_host: Array
    # by group [T]: block * block size + offset of each token's keys and values; a group of StateSpec has none, and one
    # of CrossSpec those of the encoders' positions that are written in this launch [N]: of a row, then of the next
    slot_mapping: Sequence[Tensor]
    # by group [R, blocks]: 0 for a block that lies entirely before the window of the row's first query, whose contents,
    # possibly NaN, must not affect a result; a group of StateSpec has tables whose first column is each row's state,
    # with others for states behind drafts, and one of CrossSpec those of the longest encoder's blocks
    block_tables: Sequence[Tensor]
    # [S] int32: tokens whose hidden states become logits: the last one of each row, or, in a launch that verifies, all
    # T; with the bit ALL_POSITIONS [S + T], all tokens after them
    logits_indices: Tensor
    # by group [R, blocks] int32 on the host, where a backend asks for it (CacheConstraints.host_tables), else None
    block_tables_host: Sequence[Array | None] = ()
    # by group, tokens of a block
    block_sizes: Sequence[int] = ()
    # by layer, computed by its backend
    plans: Sequence[Plan] = ()
    # the numbers that features keep, by name: [R], or [T] if the column has one for each token; those of tokens are
    # valid in the forward pass only
    columns: dict[str, Tensor] = field(default_factory=dict)
    # by group, how many tokens a query sees, itself included; None: all before it
    windows: Sequence[int | None] = ()
    # [R] int32 on the host: `rows`
    rows_host: Array = field(default_factory=int32)

    def select_logits(self, states: Tensor) -> Tensor:
        """states [T, ...] -> the rows at logits_indices [S, ...]."""
        return states if self.key.samples_all else states.index_select(0, self.logits_indices)


@dataclass(frozen=True)
class LaunchRows:
    """The n rows of a launch as plain numbers, for what says more of their tokens (WorkerFeature.token_columns)."""

    # of its key
    bits: frozenset[str]
    # T, with padding
    num_tokens: int
    # [n] int32: indices into the row state
    rows: Array
    # [n] int: the position of each row's first token in this launch
    starts: Array
    # [n] int: tokens that each row computes
    counts: Array
    # [n] int: which of the T tokens is each row's first
    places: Array

    @classmethod
    def from_launch(cls, launch: Launch) -> LaunchRows:
        part = slice(launch.num_rows)
        counts = launch.query_lens_host[part]
        starts = launch.seq_lens_host[part] - counts
        places = launch.query_start_loc_host[part]
        return cls(launch.key.bits, launch.key.tokens, launch.rows_host[part], starts, counts, places)


class Buffers(Protocol):
    """Device tensors by name that keep their addresses from launch to launch."""

    def get(self, name: str, shape: Sequence[int], dtype: str) -> Tensor:
        """A tensor of this shape at the start of the buffer of this name."""

    def put(self, name: str, values: Any, dtype: str) -> Tensor:
        """Starts a copy of a host array into the buffer of this name, without waiting for the device, and returns the
        device's tensor."""


def persistent(plan: Any, name: str, buffers: Buffers | None) -> Any:
    """A plan that is a dataclass, with each of its tensors copied into a buffer of its own, so that they keep their
    addresses; for MixerBackend.plan(). name: of the buffers, such as AttentionGroup.name. Unchanged if buffers is
    None."""
    if buffers is None:
        return plan
    kept: dict[str, Any] = {}
    for part in fields(plan):
        value, place = getattr(plan, part.name), f"{name}_{part.name}"
        if is_dataclass(value):
            kept[part.name] = persistent(value, place, buffers)
        elif isinstance(value, tuple) and all(map(is_dataclass, value)):
            kept[part.name] = tuple(persistent(one, f"{place}{at}", buffers) for at, one in enumerate(value))
        elif hasattr(value, "data_ptr"):
            dtype = str(value.dtype).removeprefix("torch.")
            kept[part.name] = buffers.get(place, value.shape, dtype).copy_(value)
    return replace(plan, **kept)
