"""Plain data between the scheduler and the executor: the decision for one step, and its result.

These structs cross processes as msgpack. Add new fields at the end, with a default. Token and block ids are int32
arrays.
"""

from __future__ import annotations

import msgspec

from tessera.arrays import Array, int32
from tessera.pooling_params import RequestPooling
from tessera.sampling_params import SamplingParams


class RowOpened(msgspec.Struct, array_like=True):
    """A request gets a row of the runner's state.

    tokens: all its tokens. The first num_prompt_tokens are the prompt and the rest the completion so far; the KV cache
    already holds the first num_computed_tokens (after a prefix hit or a fork).
    """

    row: int
    request_id: str
    tokens: Array
    num_prompt_tokens: int
    num_computed_tokens: int
    params: SamplingParams
    seed: int
    # Request.feature_args
    feature_args: dict[str, str] = {}
    columns: dict[str, float] = {}
    # Request.cache_key
    cache_key: bytes = b""
    # Request.pooling
    pooling: RequestPooling | None = None


class BlockDelta(msgspec.Struct, array_like=True):
    """New entries for the block tables of one cache group: row rows[i] gets the next counts[i] of `blocks`, from column
    starts[i] of its table on."""

    rows: Array
    starts: Array
    counts: Array
    blocks: Array


class BlockCopy(msgspec.Struct, array_like=True):
    """Whole blocks of one group to copy before the forward pass (copy on write): sources[i] to targets[i]. No block is
    both a source and a target, so all can be copied at once."""

    group: int
    sources: Array
    targets: Array


class MediaToEncode(msgspec.Struct, array_like=True):
    """An image, or the like, whose features a step computes before its forward pass, or a part of that."""

    # PlacedMedia.modality
    modality: str
    # [features] int32: rows of the encoder cache, where the features are kept
    slots: Array
    # PlacedMedia.inputs; none where an earlier step had a part
    inputs: dict[str, Array]
    # which encoding it is, in all its steps: counts up
    number: int
    # of len(slots): how much of the work is done behind this step
    done: int
    # which of the first stage's workers does it, in all its steps
    rank: int


class RowMedia(msgspec.Struct, array_like=True):
    """Which tokens of a row's part of a step stand for features, and what else is said of them."""

    row: int
    # [tokens] int32: ascending positions in the row
    places: Array
    # [tokens] int32: for each, the row of the encoder cache
    slots: Array
    # [axes, all of the row's tokens in the step] int32, if tokens have positions on several axes
    positions: Array | None = None
    # [tokens of the row in the step, from the first on] int32: how many tokens after each one it sees, if those of an
    # image or of a prompt see each other
    ahead: Array | None = None
    # [all of the row's tokens in the step] int32: 1 for those that experts for images take, if there are such experts
    seen: Array | None = None
    # [3, all of the row's tokens in the step] int32, of a row with images that are seen through cross attention: the
    # first position that each token sees, how many, and whether these are of an image that it comes behind
    ranges: Array | None = None

    @property
    def is_plain(self) -> bool:
        """Whether nothing is said of any token."""
        return not self.places.size and self.positions is None and self.ahead is None and self.ranges is None


class RowSources(msgspec.Struct, array_like=True):
    """A row that begins in a step, with what its tokens see through cross attention: keys and values of it are written
    in the step."""

    row: int
    # [positions] int32: for each, the row of the encoder cache
    slots: Array


class StepMedia(msgspec.Struct, array_like=True):
    """The images, and the like, of a step."""

    encode: list[MediaToEncode]
    rows: list[RowMedia]
    sources: list[RowSources] = []
    # numbers of encodings that no step goes on with
    dropped: list[int] = []


class SchedulerOutput(msgspec.Struct, array_like=True):
    """The decision for one step. A runner applies freed, opened, blocks and copies in this order (a row may be freed
    and reopened in one step), then computes. A step that only encodes media has no rows to compute."""

    step: int  # counts up from 0
    after: int  # the latest step whose sampled tokens are input to this one, and may still be on the device; -1 if none
    rows: Array  # row rows[i] computes num_scheduled_tokens[i] tokens from position starts[i] on
    starts: Array  # one for each of rows
    num_scheduled_tokens: Array  # one for each of rows
    samples: Array  # the rows that reach the end of their tokens: their next token is sampled, or they are pooled
    blocks: list[BlockDelta]
    opened: list[RowOpened] = []
    freed: Array = int32()
    copies: list[BlockCopy] = []
    # Guesses of the tokens after the newest one, of all rows one after the other. In a step that has any, every row
    # decodes: row rows[i] computes its newest token and the next num_scheduled_tokens[i] - 1 of the drafts, and a token
    # is sampled at each of these positions.
    drafts: Array = int32()
    # Filled by the feature `media`, if a row's tokens stand for images or the like, or if one is encoded.
    media: StepMedia | None = None
    # How many drafts a layer of the model makes of what follows the newest token of each row that samples.
    num_drafts: int = 0

    @property
    def total_num_scheduled_tokens(self) -> int:
        return int(self.num_scheduled_tokens.sum())


class TokenMasks(msgspec.Struct, array_like=True):
    """Which tokens may be sampled for some rows. rows [M] int32; for all other rows, any token may be sampled. A row
    with drafts comes once for each of its positions, in order. bits [M, ceil(vocabulary / 32)] int32, the lowest first:
    1 if the token may be sampled for the row."""

    rows: Array
    bits: Array


class RowLogprobs(msgspec.Struct, array_like=True):
    """Log probabilities of the tokens sampled in a row: ids and logprobs [tokens, 1 + k], the sampled token first, and
    ranks [tokens] of the sampled tokens (1 is the most likely)."""

    row: int
    ids: Array
    logprobs: Array
    ranks: Array


class PromptLogprobs(msgspec.Struct, array_like=True):
    """Log probabilities of a row's prompt tokens from position start on: ids and logprobs [tokens, 1 + k], the prompt's
    own token first, and ranks [tokens] of the prompt's tokens."""

    row: int
    start: int
    ids: Array
    logprobs: Array
    ranks: Array


class RowPooled(msgspec.Struct, array_like=True):
    """What the model's head made of a row: values [numbers] float32, or [tokens, numbers] of a task of tokens."""

    row: int
    values: Array


class RowError(msgspec.Struct, array_like=True):
    """A row that could not be computed. The other rows of the step are valid."""

    row: int
    message: str


class StepStats(msgspec.Struct, frozen=True, array_like=True):
    """Seconds on the runner spent launching the forward pass, launching sampling and waiting for the device. fallbacks:
    how often each op's reference implementation ran since the model was loaded. compilations: how many kernels were
    compiled since warm-up ended."""

    forward: float = 0.0
    sample: float = 0.0
    wait: float = 0.0
    fallbacks: dict[str, int] = {}
    compilations: int = 0


class StepOutput(msgspec.Struct, array_like=True):
    """The result of a step: row rows[i] sampled the next counts[i] of `tokens`, in order. A row with drafts has one
    token more than drafts that were accepted."""

    step: int
    rows: Array
    counts: Array
    tokens: Array
    logprobs: list[RowLogprobs] = []
    errors: list[RowError] = []
    stats: StepStats = StepStats()
    prompt_logprobs: list[PromptLogprobs] = []
    # Of rows with `pooling` that reached the end of their prompt; they sample no token.
    pooled: list[RowPooled] = []
    # [rows, SchedulerOutput.num_drafts] int32: guesses of what follows the newest token of each of `rows`; -1 behind
    # the last one. Empty where a step makes none.
    drafts: Array = int32()
