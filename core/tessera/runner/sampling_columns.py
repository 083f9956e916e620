"""Sampling parameters by row, as host arrays, so that a step asks them for all its rows at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntFlag

import numpy as np

from tessera.arrays import Array
from tessera.runner.row_edits import RowEdits, allowed_bits
from tessera.step import RowOpened


class Asks(IntFlag):
    """What a row has done to its logits before a token is drawn."""

    MASK = 1
    EDITS = 2
    PENALTIES = 4


@dataclass
class SamplingColumns:
    """[rows] each, as SamplingRows and Penalties have them. logprobs, scored: alternatives asked for of drawn tokens
    and of the prompt's, -1 none. asks: Asks. edits, masks: of the rows that have any; changed: counts how often they
    did; opened: how often a row got values. eos, vocab: the model's."""

    temperature: Array
    top_k: Array
    top_p: Array
    min_p: Array
    seed: Array
    logprobs: Array
    scored: Array
    num_prompt_tokens: Array
    presence: Array
    frequency: Array
    repetition: Array
    asks: Array
    eos: Sequence[int]
    vocab: int
    edits: dict[int, RowEdits] = field(default_factory=dict)
    masks: dict[int, Array] = field(default_factory=dict)
    changed: int = 0
    opened: int = 0
    scoring: set[int] = field(default_factory=set)
    """Rows whose requests ask for the log probabilities of their prompts."""

    @classmethod
    def of(cls, rows: int, eos: Sequence[int], vocab: int) -> SamplingColumns:
        return cls(
            temperature=np.zeros(rows, np.float32),
            top_k=np.zeros(rows, np.int32),
            top_p=np.ones(rows, np.float32),
            min_p=np.zeros(rows, np.float32),
            seed=np.zeros(rows, np.int64),
            logprobs=np.full(rows, -1, np.int32),
            scored=np.full(rows, -1, np.int32),
            num_prompt_tokens=np.zeros(rows, np.int32),
            presence=np.zeros(rows, np.float32),
            frequency=np.zeros(rows, np.float32),
            repetition=np.ones(rows, np.float32),
            asks=np.zeros(rows, np.uint8),
            eos=eos,
            vocab=vocab,
        )

    def open(self, opened: RowOpened) -> None:
        """A request's own values into its row. A prompt whose answer has begun was scored before."""
        row, params = opened.row, opened.params
        answered = len(opened.tokens) > opened.num_prompt_tokens
        self.temperature[row] = params.temperature
        self.top_k[row] = params.top_k
        self.top_p[row] = params.top_p
        self.min_p[row] = params.min_p
        self.opened += 1
        self.seed[row] = np.uint64(opened.seed & (2**64 - 1)).astype(np.int64)
        self.logprobs[row] = -1 if params.logprobs is None else params.logprobs
        self.scored[row] = -1 if params.prompt_logprobs is None or answered else params.prompt_logprobs
        self.scoring.discard(row)
        if self.scored[row] >= 0:
            self.scoring.add(row)
        self.num_prompt_tokens[row] = opened.num_prompt_tokens
        self.presence[row] = params.presence_penalty
        self.frequency[row] = params.frequency_penalty
        self.repetition[row] = params.repetition_penalty
        self._ask(opened)

    def scored_among(self, rows: Array, starts: Array) -> Array:
        """The places of those of rows, which go on at starts, that compute tokens of a prompt that are asked for."""
        if not self.scoring:
            return np.zeros(0, np.intp)
        return np.flatnonzero((self.scored[rows] >= 0) & (starts < self.num_prompt_tokens[rows] - 1))

    def _ask(self, opened: RowOpened) -> None:
        row, params = opened.row, opened.params
        if self.asks[row]:
            self.edits.pop(row, None)
            self.masks.pop(row, None)
            self.changed += 1
        asks = Asks.PENALTIES if params.penalised else Asks(0)
        edits = RowEdits.of(params, opened.num_prompt_tokens, self.eos, self.vocab)
        if edits is not None:
            self.edits[row] = edits
            asks |= Asks.EDITS
        if params.allowed_token_ids is not None:
            self.masks[row] = allowed_bits(params.allowed_token_ids, self.vocab)
            asks |= Asks.MASK
        self.changed += bool(asks)
        self.asks[row] = asks
