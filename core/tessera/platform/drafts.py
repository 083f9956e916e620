"""Drafts at a model runner's side of a step: where tokens are sampled, and which drafts are accepted."""

from __future__ import annotations

import numpy as np

from tessera.arrays import Array, ranges
from tessera.platform.runner import HostSampled
from tessera.step import RowLogprobs, SchedulerOutput, StepOutput


def write_drafts(step: SchedulerOutput, tokens: Array) -> None:
    """Writes the drafts of a step to where its rows compute them: tokens [rows, positions] int32, such as
    InputBatch.tokens. Nothing to write if the step has no drafts."""
    if len(step.drafts):
        counts = step.num_scheduled_tokens - 1
        tokens[np.repeat(step.rows, counts), ranges(step.starts + 1, counts)] = step.drafts


def sampled_at(step: SchedulerOutput) -> tuple[Array, Array]:
    """rows, positions [S] int32: the row of each token that a step samples, and the token's position. A row comes once,
    or, in a step with drafts, once for each token that it computes, in order."""
    counts, starts = step.num_scheduled_tokens, step.starts
    if not len(step.drafts):
        chosen = np.isin(step.rows, step.samples)
        return step.rows[chosen], (starts + counts)[chosen]
    return np.repeat(step.rows, counts), ranges(starts + 1, counts).astype(np.int32)


def step_output(step: SchedulerOutput, sampled: HostSampled) -> StepOutput:
    """The output of a step from what was sampled at each place of sampled_at(). Of the drafts, those are accepted that
    were sampled themselves, up to the first that was not; log probabilities are kept of accepted tokens alone."""
    rows, _ = sampled_at(step)
    if not len(step.drafts):
        return StepOutput(step.step, rows, np.ones(len(rows), np.int32), sampled.tokens, sampled.logprobs)
    follows = np.full(len(rows), -1, np.int32)
    ends = np.cumsum(step.num_scheduled_tokens) - 1
    follows[np.delete(np.arange(len(rows)), ends)] = step.drafts
    first, counts = accepted(follows, sampled.tokens)
    logprobs = []
    for row, count in zip(step.rows.tolist(), counts.tolist(), strict=True):
        own = [one for one in sampled.logprobs if one.row == row][:count]
        if own:
            parts = (np.concatenate(part) for part in zip(*((x.ids, x.logprobs, x.ranks) for x in own), strict=True))
            logprobs.append(RowLogprobs(row, *parts))
    return StepOutput(step.step, step.rows, counts, sampled.tokens[ranges(first, counts)], logprobs)


def accepted(drafts: Array, tokens: Array) -> tuple[Array, Array]:
    """drafts, tokens [n]: at each place the draft that follows, -1 after the last one of a row, and the token that was
    drawn. Gives the first place of each row, and how many tokens it drew: those up to the first that is not the
    draft."""
    last = np.flatnonzero(drafts < 0)
    first = np.concatenate(([0], last[:-1] + 1))
    differs = np.where(tokens != drafts, np.arange(len(tokens)), len(tokens))
    return first, (np.minimum.reduceat(differs, first) - first + 1).astype(np.int32)
