"""The plain data between the scheduler and whoever executes: one step's decision, and what came of it.

These structs cross processes as msgpack. New fields come at the end with a default. Token and block ids are int32
arrays.
"""

from __future__ import annotations

import msgspec

from tessera.arrays import Array, int32
from tessera.sampling_params import SamplingParams


class RowOpened(msgspec.Struct, array_like=True):
    """A request takes a row of the runner's state.

    tokens: all its tokens, prompt and answer; the first num_prompt_tokens of them are the prompt, and the KV cache
    already holds the first num_computed_tokens (a prefix hit or a fork).
    """

    row: int
    request_id: str
    tokens: Array
    num_prompt_tokens: int
    num_computed_tokens: int
    params: SamplingParams
    seed: int
    adapter: str = ""
    columns: dict[str, float] = {}


class BlockDelta(msgspec.Struct, array_like=True):
    """New entries of the block tables of one cache group: row rows[i] gets the next counts[i] of `blocks`, from column
    starts[i] of its table on."""

    rows: Array
    starts: Array
    counts: Array
    blocks: Array


class BlockCopy(msgspec.Struct, array_like=True):
    """Copy whole blocks of one group before the forward (copy on write): sources[i] to targets[i]. No block is both a
    source and a target, so all may be copied at once."""

    group: int
    sources: Array
    targets: Array


class SchedulerOutput(msgspec.Struct, array_like=True):
    """The decision for one step. A runner applies freed, opened, blocks and copies in this order (a row may be freed
    and opened again), then computes.

    step: counts up from 0. after: the newest step whose sampled tokens this one feeds on, which may still be on the
    device; -1: none. rows, starts, num_scheduled_tokens: row rows[i] computes num_scheduled_tokens[i] tokens from
    position starts[i] on. samples: those of the rows whose next token is drawn, because they reach the end of their
    tokens.
    """

    step: int
    after: int
    rows: Array
    starts: Array
    num_scheduled_tokens: Array
    samples: Array
    blocks: list[BlockDelta]
    opened: list[RowOpened] = []
    freed: Array = int32()
    copies: list[BlockCopy] = []

    @property
    def total_num_scheduled_tokens(self) -> int:
        return int(self.num_scheduled_tokens.sum())


class TokenMasks(msgspec.Struct, array_like=True):
    """Which tokens rows may draw. rows [M] int32: a row that is not among them may draw any token. bits [M,
    ceil(vocabulary / 32)] int32, the lowest first: 1 if the row may draw the token."""

    rows: Array
    bits: Array


class RowLogprobs(msgspec.Struct, array_like=True):
    """Log probabilities of the tokens drawn in a row: [tokens, 1 + k] ids and log probabilities, the drawn token first;
    its rank (1: the most likely)."""

    row: int
    ids: Array
    logprobs: Array
    ranks: Array


class PromptLogprobs(msgspec.Struct, array_like=True):
    """Log probabilities of prompt tokens of a row, from position start on: [tokens, 1 + k] ids and log probabilities,
    the prompt's own token first; their ranks [tokens]."""

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
    """Seconds on the runner: to launch the forward, to launch sampling, waiting for the device. fallbacks: how often
    each op's reference ran since the model was loaded."""

    forward: float = 0.0
    sample: float = 0.0
    wait: float = 0.0
    fallbacks: dict[str, int] = {}


class StepOutput(msgspec.Struct, array_like=True):
    """What came of a step: row rows[i] drew the next counts[i] of `tokens`, in order."""

    step: int
    rows: Array
    counts: Array
    tokens: Array
    logprobs: list[RowLogprobs] = []
    errors: list[RowError] = []
    stats: StepStats = StepStats()
    prompt_logprobs: list[PromptLogprobs] = []
