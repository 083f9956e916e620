"""Speculative decoding: who guesses the next tokens of a row, and how many guesses are worth a step's time.

A step verifies k drafts of a row in one launch: it computes the newest token and the drafts, and draws a token at each
of these 1 + k positions. Drafts are accepted as long as they equal what was drawn; the first drawn token that differs
is the row's newest one. A row whose drafts are being verified is not scheduled again before that step retires, because
only then its next position is known.

This keeps the distribution, whatever is proposed. Speculative sampling (arXiv:2211.17192) accepts a draft d, proposed
with probability q(d) where the model says p(d), with probability min(1, p(d) / q(d)), and else draws from
max(0, p - q), normalised. A proposer that looks its drafts up is certain of them: q(d) = 1. So d is accepted with
probability p(d), and else a token is drawn from p without d, normalised. Drawing t from p and accepting d where t = d
does exactly that: P(t = d) = p(d), and given t != d, t is distributed as p without d. The draw at a position depends on
the row's seed, the position and the tokens before it alone (docs/decisions/randomness.md), so an answer does not merely
have the same distribution: it has the same tokens as without drafts, greedy or not, wherever the logits have the same
bits. --batch-invariant promises that; else a step of several tokens may round them differently, and a tie may fall the
other way.

A proposer that samples its drafts from a q of its own would need more: q reaches the sampler, which accepts with
p(d) / q(d) by a second random number of the same seed and position and else draws from the difference. Text would then
depend on the drafts. Its drafts can also be taken as certain, as here, at the price of fewer accepted ones.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np

from tessera.arrays import Array, int32
from tessera.config.engine import SpeculativeConfig
from tessera.scheduler.requests import StepInFlight
from tessera.scheduler.rows import Rows, Work
from tessera.step import StepOutput
from tessera.step_times import StepTimes

# ---- who proposes


class Proposer(Protocol):
    def propose(self, row: int, tokens: Array, max_drafts: int) -> Array:
        """Guesses of the tokens that follow tokens [n] int32, prompt and answer of one row: up to max_drafts, int32.
        Empty where there is nothing to guess from."""


class NgramProposer:
    """Prompt lookup: finds the row's last tokens earlier in the row and proposes what came after them there. The most
    tokens that match win, then the latest place. Where the found text reaches the end of the row, it is repeated."""

    def __init__(self, config: SpeculativeConfig) -> None:
        self.shortest, self.longest = config.prompt_lookup_min, config.prompt_lookup_max

    def propose(self, row: int, tokens: Array, max_drafts: int) -> Array:
        """Finds the places of the last token, then keeps those whose tokens before it match too, one token at a
        time."""
        ends = np.flatnonzero(tokens[:-1] == tokens[-1]) if len(tokens) > self.shortest else int32()
        for back in range(1, self.longest):
            if not len(ends) or back >= len(tokens):
                break
            longer = ends[(ends >= back) & (tokens[ends - back] == tokens[-1 - back])]
            if not len(longer):
                if back < self.shortest:
                    return int32()
                break
            ends = longer
        if not len(ends):
            return int32()
        begin = int(ends[-1]) + 1
        found: Array = tokens[begin + np.arange(max_drafts) % (len(tokens) - begin)]
        return found


# ---- how many drafts are worth it


PRIOR, FORGET = 2.0, 0.9
"""Drafts that a row's acceptance begins with, as all rows' has been; and what earlier drafts count after each step."""
PLAIN_EVERY = 32
"""Of so many steps that could have drafts, one has none, so that the time of a step without is known as it is now."""
ALLOWANCE, MOST_CREDIT = 0.01, 4.0
"""The share of the time that drafts may lose; and the most that is remembered of gains and losses, in plain steps."""
MARGIN, LEAST = 1.1, 0.97
"""How many times the tokens per second of a plain step drafts must promise, since the host's work between steps grows
too; and the least of its speed in plain steps that each row must keep, because rows share a step but not its drafts."""
TRIED_ROWS = 4
"""The most rows that get a draft to see whether drafts have become worth it."""


class DraftLengths:
    """How many drafts each row gets: as many as give the most tokens per second.

    A row whose drafts are accepted with probability p each gains p + p^2 + ... + p^k tokens from k of them. Rows share
    the launch, so drafts are taken in the order of what they gain, over all rows, up to the number that gives the most
    tokens per second; that may be none. If a row would get slower for the drafts of others, there are only as many as
    hardly slow the step.

    Acceptance and times change, so what promises nothing is tried again and again, and what promises much may fail.
    Both are paid from an account: each step adds the allowance, steps with drafts add what they gained over plain steps
    or take what they lost, and looking for drafts in vain takes its time. While the account is empty, drafts are
    suspended, and nothing is looked for. credit: the account, in plain steps.
    """

    def __init__(self, num_rows: int, max_drafts: int) -> None:
        self.max_drafts = max_drafts
        self.times = StepTimes()
        self.credit = 1.0
        self._tried = np.zeros(num_rows)  # drafts whose predecessors were accepted, old ones counting less
        self._accepted = np.zeros(num_rows)
        self._all_tried, self._all_accepted = 1.0, 0.6
        self._num_steps = 0

    def suspended(self, num_tokens: int) -> bool:
        """Whether the next step has no drafts, whatever could be found. num_tokens: of the step without drafts."""
        if self.credit <= 0 or not self.times.knows(num_tokens):
            return True
        self._num_steps += 1
        return self._num_steps % PLAIN_EVERY == 0

    def forget(self, row: int) -> None:
        """Another request has the row."""
        self._tried[row] = self._accepted[row] = 0.0

    def choose(self, rows: Array, limits: Array, num_tokens: int) -> Array:
        """[rows] int32: the number of drafts of each, at most its limit. num_tokens: of the step without drafts."""
        none = np.zeros(len(rows), np.int32)
        rate = (self._accepted[rows] + PRIOR * self._all_accepted / self._all_tried) / (self._tried[rows] + PRIOR)
        places = np.arange(1, self.max_drafts + 1)
        gains = np.where(places <= limits[:, None], rate[:, None] ** places, 0.0)
        best = np.sort(gains, axis=None)[::-1]
        best = best[: np.count_nonzero(best)]
        tokens = num_tokens + np.concatenate(([0.0], np.cumsum(best)))
        seconds = self.times.seconds(num_tokens + np.arange(len(tokens)))
        slower, per_second = seconds / seconds[0], tokens / seconds
        number = int(per_second.argmax())
        if number and (1 + _taken(gains, best[number - 1]).sum(axis=1)).min() < LEAST * slower[number]:
            number = int(np.where(slower * LEAST <= 1, per_second, 0.0).argmax())
        if not number or per_second[number] <= MARGIN * per_second[0]:
            return none
        chosen: Array = np.count_nonzero(_taken(gains, best[number - 1]), axis=1).astype(np.int32)
        return chosen

    def learn(self, rows: Array, tried: Array, accepted: Array) -> None:
        """Each of the rows had so many drafts verified, and so many of them, from the first on, accepted."""
        seen = np.minimum(tried, accepted + 1)
        for totals, new in ((self._tried, seen), (self._accepted, accepted)):
            totals[rows] = FORGET * totals[rows] + new
        self._all_tried = FORGET * self._all_tried + seen.mean()
        self._all_accepted = FORGET * self._all_accepted + accepted.mean()

    def step_took(
        self, seconds: float, num_rows: int, num_tokens: int, num_accepted: int, *, usual: bool = True
    ) -> None:
        """A step without prompts retired. num_tokens: with drafts, of which num_accepted were accepted. What the first
        step of so many tokens took may include what is done once, so at most one plain step is taken for it. usual:
        whether its time says what a step of so many tokens takes."""
        if usual:
            self.times.add(num_tokens, seconds)
        gained = ALLOWANCE
        if num_tokens > num_rows or not usual:
            plain, with_drafts = self.times.seconds(np.array([num_rows, num_tokens])).tolist()
            gained += 1 + num_accepted / num_rows - (with_drafts if usual else seconds) / plain
        self._pay(gained if usual and self.times.knows(num_tokens) else max(gained, -1.0))

    def looked(self, seconds: float, num_tokens: int, *, waited: bool) -> None:
        """Drafts were looked for in vain, before a step of so many tokens. waited: for the step before, so that the
        device had nothing to do meanwhile."""
        self._pay(-waited - seconds / float(self.times.seconds(np.array([num_tokens]))[0]))

    def _pay(self, plain_steps: float) -> None:
        self.credit = min(max(self.credit + plain_steps, -MOST_CREDIT), MOST_CREDIT)


def _taken(gains: Array, least: float) -> Array:
    """gains [rows, drafts]: those that are at least so large, and 0 in place of the others."""
    taken: Array = np.where(gains >= least, gains, 0.0)
    return taken


# ---- a step's drafts


class Speculation:
    """Drafts for the rows of a step, and what is learned from their verification. max_drafts: of one row. num_ahead:
    how many drafts of what follows it the rows of a step make on the device."""

    num_ahead = 0

    def __init__(self, proposer: Proposer, rows: Rows, max_drafts: int, clock: Callable[[], float]) -> None:
        self.proposer = proposer
        self.lengths = DraftLengths(rows.num_rows, max_drafts)
        self._rows, self._clock = rows, clock
        self._keys = np.full(rows.num_rows, -1, dtype=np.int64)
        self._waits = self._waited = False
        self._tried_to = 0

    def ready(self, work: Work) -> Work:
        """Where all rows decode and drafts are wanted, without rows whose newest token a step in flight draws: to guess
        what follows a token, it must be known."""
        if not (self._waits and work.decodes):
            return work
        known = self._rows.pending[work.rows] == 0
        self._waited = self._waited or not known.all()
        return work.where(known)

    def draft(self, work: Work, room: int) -> list[Array]:
        """The drafts of each row of a step in which all rows decode; an empty list if none has any. room: for so many
        tokens besides."""
        if self.lengths.suspended(len(work.rows)):
            self._waits = self._waited = False
            return []
        began = self._clock()
        drafts = self._looked_up(work, room)
        if not drafts and not self._waits:
            self.lengths.looked(self._clock() - began, len(work.rows), waited=self._waited)
        self._waited = self._waited and self._waits and not drafts
        return drafts

    def _looked_up(self, work: Work, room: int) -> list[Array]:
        rows, row_numbers, number = self._rows, work.rows, len(work.rows)
        self._forget_others(row_numbers)
        limits = np.minimum(rows.max_total[row_numbers] - 1 - rows.num_tokens[row_numbers], self.lengths.max_drafts)
        asked, tries = self._wanted(row_numbers, limits)
        known = rows.pending[row_numbers] == 0
        self._waits = bool(asked.any()) and not known.any()
        if self._waits:
            return []
        self._tried_to += TRIED_ROWS if tries else 0
        asked = np.where(known, asked, 0)
        drafts = [self._row_drafts(row, most) for row, most in zip(row_numbers.tolist(), asked.tolist(), strict=True)]
        found = int32([len(one) for one in drafts])
        if not tries and found.any():  # rows without any leave less to gain in the same launch
            found = self.lengths.choose(row_numbers, found, number)
        found = np.clip(room - (np.cumsum(found) - found), 0, found)
        self._waits = bool(found.any())
        return [one[:count] for one, count in zip(drafts, found.tolist(), strict=True)] if self._waits else []

    def _wanted(self, row_numbers: Array, limits: Array) -> tuple[Array, bool]:
        """How many drafts each row should get, at most its limit, and whether that is only to see if they have become
        worth it."""
        number = len(row_numbers)
        wanted = self.lengths.choose(row_numbers, limits, number)
        if wanted.any():
            return wanted, False
        turn = (np.arange(number) - self._tried_to) % number
        return np.where(turn < TRIED_ROWS, np.clip(limits, 0, 1), 0), True

    def _row_drafts(self, row: int, max_drafts: int) -> Array:
        if not max_drafts:
            return int32()
        rows = self._rows
        drafts = self.proposer.propose(row, rows.tokens[row, : rows.num_tokens[row]], max_drafts)
        if rows.masked[row] and len(drafts):
            drafts = drafts[: rows.request(row).features.num_allowed(drafts)]
        return drafts

    def _forget_others(self, rows: Array) -> None:
        for row in rows[self._keys[rows] != self._rows.key[rows]].tolist():
            self.lengths.forget(row)
            self._keys[row] = self._rows.key[row]

    def learn(self, step: StepInFlight, output: StepOutput, seconds: float) -> int:
        """A step retired: how many of its drafts were accepted. seconds: that it took by itself."""
        num_accepted = 0
        if len(step.drafted):
            accepted = output.counts[np.isin(output.rows, step.drafted)] - 1
            self.lengths.learn(step.drafted, step.num_drafts, accepted)
            num_accepted = int(accepted.sum())
        if 0 < len(step.rows) == len(step.sampling) and not len(step.prompts):
            self._step_took(step, output, seconds, num_accepted)
        return num_accepted

    def _step_took(self, step: StepInFlight, output: StepOutput, seconds: float, num_accepted: int) -> None:
        """Of a step without prompts."""
        self.lengths.step_took(seconds, len(step.rows), step.num_tokens, num_accepted)
