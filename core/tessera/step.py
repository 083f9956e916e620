"""The plain data between the scheduler and whoever executes: one step's decision, and what came of it.

These structs cross processes as msgpack; VERSION changes when a field's meaning does, new fields come at the end with a
default. Token and block ids are int32 arrays. All fields stand from the first version on, also those whose feature
comes later.
"""

from __future__ import annotations

import msgspec

from tessera.arrays import Array, int32
from tessera.request import EncoderItem, SamplingParams, TensorRef

VERSION = 2


class RowOpened(msgspec.Struct, array_like=True):
    """A request takes a row of the runner's state. tokens: all it has, prompt and answer; num_prompt of them are the
    prompt; num_computed of them are in the cache already (a prefix hit or a fork)."""

    row: int
    request_id: str
    tokens: Array
    num_prompt: int
    num_computed: int
    params: SamplingParams
    seed: int
    adapter: str = ""
    columns: dict[str, float] = {}


class BlockDelta(msgspec.Struct, array_like=True):
    """Blocks appended to rows' tables in one cache group: rows[i] gets counts[i] of `blocks`, in order. Put in place of
    the block at index starts[i] and on."""

    rows: Array
    starts: Array
    counts: Array
    blocks: Array


class BlockCopy(msgspec.Struct, array_like=True):
    """Copy whole blocks of one group before the forward (copy on write): sources[i] to targets[i]. No block is both, so
    that all may be copied at once."""

    group: int
    sources: Array
    targets: Array


class Transfer(msgspec.Struct, array_like=True):
    """Blocks to move to or from elsewhere beside the step."""

    number: int
    group: int
    blocks: Array
    store: str
    load: bool


class RowItem(msgspec.Struct, array_like=True):
    """An encoder's input that this step must compute for a row."""

    row: int
    item: EncoderItem


class AdapterChange(msgspec.Struct, array_like=True):
    """An adapter that must be in place before this step, or may go."""

    name: str
    slot: int
    load: bool


class Drafts(msgspec.Struct, array_like=True):
    """Proposed tokens to verify: rows[i] has counts[i] of `tokens`."""

    rows: Array
    counts: Array
    tokens: Array


class SchedulerOutput(msgspec.Struct, array_like=True):
    """The decision for one step. A runner applies freed, opened, blocks and copies in this order (a row may be freed
    and opened again), then computes.

    step: counts up from 0. after: the newest step whose sampled tokens this one feeds on; they may still be on the
    device; -1 none. rows, starts, num_tokens: the grants: row r computes num_tokens tokens from position starts.
    samples: the rows among them that reach the end of their tokens, so a next token is drawn. masked: rows whose logits
    wait for a mask. dummy: shapes only, nothing is kept (keeps collectives in step).
    """

    step: int
    after: int
    rows: Array
    starts: Array
    num_tokens: Array
    samples: Array
    blocks: list[BlockDelta]
    opened: list[RowOpened] = []
    freed: Array = int32()
    copies: list[BlockCopy] = []
    drafts: Drafts | None = None
    transfers: list[Transfer] = []
    encoder: list[RowItem] = []
    adapters: list[AdapterChange] = []
    masked: Array = int32()
    dummy: bool = False
    epoch: int = 0
    version: int = VERSION

    @property
    def total_tokens(self) -> int:
        return int(self.num_tokens.sum())


class RowLogprobs(msgspec.Struct, array_like=True):
    """For each token drawn in a row: [tokens, 1 + k] ids and log probabilities, the drawn token first; its rank (1 the
    most likely)."""

    row: int
    ids: Array
    logprobs: Array
    ranks: Array


class ScoredTokens(msgspec.Struct, array_like=True):
    """Known tokens of a row, from position start on: [tokens, 1 + k] ids and log probabilities, the known token first;
    their ranks [tokens]."""

    row: int
    start: int
    ids: Array
    logprobs: Array
    ranks: Array


class RowError(msgspec.Struct, array_like=True):
    """A row that could not be computed; the others of the step stand."""

    row: int
    message: str


class StepStats(msgspec.Struct, frozen=True, array_like=True):
    """Seconds on the runner: forward launched, sampling launched, waiting for the device. fallbacks: runs of each op's
    reference since the model was loaded. Counts of tokens drafted and accepted."""

    forward: float = 0.0
    sample: float = 0.0
    wait: float = 0.0
    fallbacks: dict[str, int] = {}
    drafted: int = 0
    accepted: int = 0


class StepOutput(msgspec.Struct, array_like=True):
    """What came of a step: rows[i] drew counts[i] (0..k) of `tokens`, in order. scored: prompts' tokens that were asked
    for and whose hidden states were computed."""

    step: int
    rows: Array
    counts: Array
    tokens: Array
    logprobs: list[RowLogprobs] = []
    transfers_done: list[int] = []
    blocks_failed: Array = int32()
    errors: list[RowError] = []
    stats: StepStats = StepStats()
    epoch: int = 0
    version: int = VERSION
    scored: list[ScoredTokens] = []


class Masks(msgspec.Struct, array_like=True):
    """Allowed tokens of rows, as bits: [rows, ceil(vocabulary / 32)] int32."""

    rows: Array
    bits: Array


# ---- control: a closed union
# ------------------------------------------------------------------------------------------------------------


class Sleep(msgspec.Struct, tag=True, array_like=True):
    level: int = 1


class Wake(msgspec.Struct, tag=True, array_like=True):
    tags: tuple[str, ...] = ()


class UpdateWeights(msgspec.Struct, tag=True, array_like=True):
    tensors: dict[str, TensorRef]


class AddAdapter(msgspec.Struct, tag=True, array_like=True):
    name: str
    path: str


class ExportBlocks(msgspec.Struct, tag=True, array_like=True):
    """Bytes of blocks of a group in the canonical form of its layout."""

    group: int
    blocks: Array


class Close(msgspec.Struct, tag=True, array_like=True):
    pass


Control = Sleep | Wake | UpdateWeights | AddAdapter | ExportBlocks | Close


class ControlResult(msgspec.Struct, array_like=True):
    """error: one line where the verb is not supported or failed."""

    error: str | None = None
    tensors: dict[str, TensorRef] = {}
