"""The rows of requests on the host, with their sampling parameters, by which launches are built."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntFlag
from types import MappingProxyType
from typing import Any

import numpy as np

from tessera.arrays import Array, ranges
from tessera.config.engine import EngineConfig
from tessera.errors import ConfigError
from tessera.platform.feature import Column
from tessera.platform.runner import CachePlan
from tessera.pooling_params import RequestPooling
from tessera.sampling_params import SamplingParams
from tessera.step import BlockDelta, RowOpened, SchedulerOutput

PARAMETERS: Mapping[str, tuple[type[np.number[Any]], float]] = MappingProxyType(
    {
        "temperature": (np.float32, 0.0),
        "top_k": (np.int32, 0),
        "top_p": (np.float32, 1.0),
        "min_p": (np.float32, 0.0),
        "presence_penalty": (np.float32, 0.0),
        "frequency_penalty": (np.float32, 0.0),
        "repetition_penalty": (np.float32, 1.0),
    }
)
"""Fields of SamplingParams with a column of their own: its dtype, and the value that has no effect."""

SAMPLING_DTYPES: Mapping[str, str] = MappingProxyType(
    {name: np.dtype(dtype).name for name, (dtype, _) in PARAMETERS.items()} | {"seed": "int32", "position": "int32"}
)
"""Of the fields of SamplingRows, on the device."""


class LogitsOps(IntFlag):
    """What a request wants done to the logits of its row before a token is sampled."""

    MASK = 1
    EDITS = 2
    PENALTIES = 4
    SCORES = 8  # changes none of them; log probabilities of tokens that the request names are read from them


class SamplingColumns:
    """Sampling parameters of all rows as host arrays [rows], so that a step reads those of all its rows at once.
    eos, vocab: the model's end-of-text tokens and the size of its vocabulary."""

    # PARAMETERS.
    temperature: Array
    top_k: Array
    top_p: Array
    min_p: Array
    presence_penalty: Array
    frequency_penalty: Array
    repetition_penalty: Array

    def __init__(self, rows: int, eos: Sequence[int], vocab: int) -> None:
        for name, (dtype, off) in PARAMETERS.items():
            setattr(self, name, np.full(rows, off, dtype))
        # Its low and high bits.
        self.seed: Array = np.zeros((rows, 2), np.int32)
        # How many alternatives are wanted for sampled tokens; -1 for no log probabilities.
        self.logprobs: Array = np.full(rows, -1, np.int32)
        # The same for prompt tokens.
        self.prompt_logprobs: Array = np.full(rows, -1, np.int32)
        self.num_prompt_tokens: Array = np.zeros(rows, np.int32)
        # Bits of LogitsOps.
        self.logits_ops: Array = np.zeros(rows, np.uint8)
        # Of the rows that have any, like the following.
        self.edits: dict[int, RequestEdits] = {}
        # The bits of allowed_token_ids.
        self.masks: dict[int, Array] = {}
        # logprob_token_ids.
        self.scored: dict[int, Array] = {}
        # How often a row was opened.
        self.opened = 0
        self.eos, self.vocab = eos, vocab
        self._want_prompt_logprobs: set[int] = set()

    def open(self, opened: RowOpened) -> None:
        """Writes a request's values into its row. A preempted request that already has generated tokens does not get
        its prompt's log probabilities again."""
        row, params = opened.row, opened.params
        self.opened += 1
        for name in PARAMETERS:
            getattr(self, name)[row] = getattr(params, name)
        self.seed[row] = np.array([opened.seed & (2**64 - 1)], np.uint64).view(np.int32)
        self.num_prompt_tokens[row] = opened.num_prompt_tokens
        self.logprobs[row] = -1 if params.logprobs is None else params.logprobs
        answered = len(opened.tokens) > opened.num_prompt_tokens
        self.prompt_logprobs[row] = -1 if params.prompt_logprobs is None or answered else params.prompt_logprobs
        self._want_prompt_logprobs.discard(row)
        if self.prompt_logprobs[row] >= 0:
            self._want_prompt_logprobs.add(row)
        self._open_logits_ops(opened)

    def _open_logits_ops(self, opened: RowOpened) -> None:
        row, params = opened.row, opened.params
        if self.logits_ops[row]:
            self.edits.pop(row, None)
            self.masks.pop(row, None)
            self.scored.pop(row, None)
        ops = LogitsOps.PENALTIES if params.penalised else LogitsOps(0)
        edits = RequestEdits.build(params, opened.num_prompt_tokens, self.eos, self.vocab)
        if edits is not None:
            self.edits[row] = edits
            ops |= LogitsOps.EDITS
        if params.allowed_token_ids is not None:
            self.masks[row] = allowed_bits(params.allowed_token_ids, self.vocab)
            ops |= LogitsOps.MASK
        if params.logprob_token_ids is not None:
            self.scored[row] = np.array(params.logprob_token_ids, np.int32)
            ops |= LogitsOps.SCORES
        self.logits_ops[row] = ops

    def prompt_logprobs_among(self, rows: Array, starts: Array) -> Array:
        """The indices into `rows` of those that need log probabilities of the prompt tokens they compute. starts: the
        position of the first token that each row computes."""
        if not self._want_prompt_logprobs:
            return np.zeros(0, np.intp)
        return np.flatnonzero((self.prompt_logprobs[rows] >= 0) & (starts < self.num_prompt_tokens[rows] - 1))


FOREVER = 2**31 - 1


@dataclass(frozen=True)
class RequestEdits:
    """The edits of one row, with the fields of Edits: token, until [E] int32, value [E] float32, prefix [E, P]
    int32."""

    token: Array
    value: Array
    until: Array
    prefix: Array

    @classmethod
    def build(
        cls, params: SamplingParams, num_prompt_tokens: int, eos: Sequence[int], vocab: int
    ) -> RequestEdits | None:
        """The edits of a request; None if it has none. eos: the model's end-of-text tokens, which min_tokens suppresses
        together with the request's stop tokens."""
        entries: list[tuple[int, float, int, tuple[int, ...]]] = [
            (token, bias, FOREVER, ()) for token, bias in (params.logit_bias or {}).items()
        ]
        entries += [(word[-1], -np.inf, FOREVER, tuple(word[:-1])) for word in params.bad_words_ids or ()]
        if params.min_tokens:
            ends = dict.fromkeys((*eos, *(params.stop_token_ids or ())))
            entries += [(token, -np.inf, num_prompt_tokens + params.min_tokens, ()) for token in ends]
        entries = [entry for entry in entries if entry[0] < vocab]
        if not entries:
            return None
        tokens, values, until, prefixes = zip(*entries, strict=True)
        return cls(
            np.array(tokens, np.int32),
            np.array(values, np.float32),
            np.array(until, np.int32),
            _right_aligned(prefixes),
        )


def allowed_bits(allowed: Sequence[int], vocab: int) -> Array:
    """The mask for the op mask_logits, [ceil(vocab / 32)] int32: the bits of the allowed tokens are set."""
    flags = np.zeros(-(-vocab // 32) * 32, np.uint8)
    flags[np.array(allowed, np.int64)] = 1
    bits: Array = np.packbits(flags, bitorder="little").view("<i4").astype(np.int32)
    return bits


def _right_aligned(prefixes: Sequence[tuple[int, ...]]) -> Array:
    width = max(map(len, prefixes))
    result = np.full((len(prefixes), width), -1, np.int32)
    for row, prefix in zip(result, prefixes, strict=True):
        row[width - len(prefix) :] = prefix
    return result


class CoreInputBatch:
    """The state of all rows on the host. One extra row, the null row, is for padding. eos, vocab: the model's
    end-of-text tokens and the size of its vocabulary."""

    def __init__(self, plan: CachePlan, columns: Sequence[Column], *, eos: Sequence[int], vocab: int) -> None:
        rows = plan.num_rows + 1
        self.null_row = plan.num_rows
        # The last column of `tokens`, where rows that do not sample write theirs.
        self.spare = plan.max_model_len
        # [rows, max_model_len + 1] int32: the tokens known when the row was opened.
        self.tokens: Array = np.zeros((rows, plan.max_model_len + 1), np.int32)
        # The block table of each group, [rows, blocks] int32.
        self.tables: list[Array] = [
            np.zeros((rows, group.blocks_of(plan.max_model_len)), np.int32) for group in plan.groups
        ]
        # How often they changed.
        self.tables_changed = 0
        self.sampling = SamplingColumns(rows, eos, vocab)
        # Features' columns by name, [rows].
        self.columns: dict[str, Array] = {c.name: np.full(rows, c.default, c.dtype) for c in columns}
        # Names of the columns that a launch has for each token.
        self.token_columns = frozenset(c.name for c in columns if c.each == "token")
        self._defaults = {c.name: c.default for c in columns}
        # Of the rows whose requests pool.
        self.pooling: dict[int, RequestPooling] = {}

    def apply(self, step: SchedulerOutput) -> None:
        """Applies the rows that a step opens and frees and the blocks that rows get."""
        if self.pooling:
            for row in step.freed.tolist():
                self.pooling.pop(row, None)
        for opened in step.opened:
            self._open(opened)
        for table, delta in zip(self.tables, step.blocks, strict=True):
            if len(delta.rows):
                write_blocks(table, delta)
                self.tables_changed += 1

    def _open(self, opened: RowOpened) -> None:
        row = opened.row
        self.tokens[row, : len(opened.tokens)] = opened.tokens
        for table in self.tables:
            table[row] = 0
        self.tables_changed += 1
        self.sampling.open(opened)
        if opened.pooling is not None:
            self.pooling[row] = opened.pooling
        for name, column in self.columns.items():
            column[row] = opened.columns.get(name, self._defaults[name])

    def pooled_among(self, rows: Array) -> Array:
        """The indices into `rows` of those whose requests pool."""
        if not self.pooling:
            return np.zeros(0, np.intp)
        return np.flatnonzero([row in self.pooling for row in rows.tolist()])

    def pools_every_token(self, rows: Array) -> bool:
        """Whether one of these rows, which pool, pools the states of several tokens."""
        return any(self.pooling[row].every_token for row in rows.tolist())


def write_blocks(table: Array, delta: BlockDelta) -> None:
    """Writes counts[i] blocks into row rows[i] from column starts[i] on."""
    if len(delta.blocks) == len(delta.rows):
        table[delta.rows, delta.starts] = delta.blocks
        return
    table[np.repeat(delta.rows, delta.counts), ranges(delta.starts, delta.counts)] = delta.blocks


def refuse_uncounted(config: EngineConfig, index_dtype: str) -> None:
    """Raises ConfigError if the table of all rows' tokens has more elements than a device's indices count."""
    rows, max_model_len = config.scheduler.max_num_seqs, config.model.max_model_len
    if (rows + 1) * (max_model_len + 1) > np.iinfo(index_dtype).max:
        raise ConfigError(
            f"{rows:,} requests of up to {max_model_len:,} tokens are more than this device's {index_dtype} indices "
            "can count; lower --max-num-seqs or --max-model-len."
        )
