"""A device that computes nothing but keeps books: it replays every step on its own tables and says where the scheduler
was wrong.

In the place of keys and values a slot holds a hash of all tokens up to its own, so a row's slots are right exactly if
its whole history is in its blocks.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from tessera.arrays import int32
from tessera.platform import CacheGroup, CachePlan
from tessera.step import RowError, SchedulerOutput, StepOutput

VOCAB = 50
MASK = (1 << 61) - 1


def history(tokens) -> np.ndarray:
    """[len(tokens)] int64: a hash of each beginning."""
    hashes, value = [], 7
    for token in tokens:
        value = (value * 1_000_003 + int(token) + 1) & MASK
        hashes.append(value)
    return np.array(hashes, dtype=np.int64)


def next_token(hash_: int, seed: int) -> int:
    """What the device samples after a history: the same whatever runs beside it."""
    return ((hash_ ^ (seed * 0x9E3779B97F4A7C15)) * 0xD1342543DE82EF95 >> 17) % VOCAB


def expected_answer(prompt, seed: int, length: int) -> list[int]:
    tokens = list(prompt)
    for _ in range(length):
        tokens.append(next_token(int(history(tokens)[-1]), seed))
    return tokens[len(prompt) :]


def first_seen(group: CacheGroup, position: int) -> int:
    """The first position that a token at this one sees."""
    return 0 if group.window is None else max(position - group.window + 1, 0)


@dataclass
class DeviceRow:
    request_id: str
    tokens: list[int]
    hashes: np.ndarray
    seed: int
    num_computed_tokens: int
    tables: list[list[int]] = field(default_factory=list)

    def add(self, token: int) -> None:
        self.tokens.append(token)
        value = int(self.hashes[-1])
        self.hashes = np.append(self.hashes, np.int64((value * 1_000_003 + token + 1) & MASK))

    def cut(self, length: int) -> None:
        """Drafts that were not accepted go."""
        self.tokens, self.hashes = self.tokens[:length], self.hashes[:length]
        self.num_computed_tokens = min(self.num_computed_tokens, length)


class FakeDevice:
    """execute() in the order of the steps; each returns its output."""

    def __init__(self, plan: CachePlan) -> None:
        self.plan = plan
        self.most_held = [0] * len(plan.groups)
        self.slots = [np.zeros((group.num_blocks, max(group.block_size, 1)), dtype=np.int64) for group in plan.groups]
        self.written = [np.full(slots.shape, -1) for slots in self.slots]
        self.rows: dict[int, DeviceRow] = {}
        self.sampled_by: dict[int, int] = {}
        self.fail: set[str] = set()
        self.next_step = 0
        # Whether a step may have no rows, since a resource prepares something in it.
        self.prepares = False

    def execute(self, step: SchedulerOutput) -> StepOutput:
        assert step.step == self.next_step
        self.next_step += 1
        self._apply(step)
        self._check_shape(step)
        self._add_drafts(step)
        rows = step.rows.tolist()
        for row, start, count in zip(rows, step.starts.tolist(), step.num_scheduled_tokens.tolist(), strict=True):
            self._write(step.step, row, start, count, verifies=len(step.drafts) > 0)
        for row, start, count in zip(rows, step.starts.tolist(), step.num_scheduled_tokens.tolist(), strict=True):
            self._read(step.step, row, start, start + count)
        self._check_all()
        return self._sample(step)

    def _apply(self, step: SchedulerOutput) -> None:
        for row in step.freed.tolist():
            del self.rows[row]
            self.sampled_by.pop(row, None)
        for opened in step.opened:
            assert opened.row not in self.rows, "a row is opened twice"
            assert 0 < opened.row + 1 <= self.plan.num_rows
            assert 0 <= opened.num_computed_tokens < len(opened.tokens)
            tokens = opened.tokens.tolist()
            self.rows[opened.row] = DeviceRow(
                opened.request_id,
                tokens,
                history(tokens),
                opened.seed,
                opened.num_computed_tokens,
                [[] for _ in self.plan.groups],
            )
        assert len(step.blocks) == len(self.plan.groups)
        for group, delta in enumerate(step.blocks):
            assert len(delta.blocks) == delta.counts.sum()
            at = 0
            for row, start, count in zip(
                delta.rows.tolist(), delta.starts.tolist(), delta.counts.tolist(), strict=True
            ):
                table = self.rows[row].tables[group]
                assert start <= len(table), "a hole in a table"
                table[start : start + count] = delta.blocks[at : at + count].tolist()
                first = next((place for place, block in enumerate(table) if block), len(table))
                assert 0 not in table[first:], "the null block was given out"
                assert first == 0 or self.plan.groups[group].window is not None, "a block was taken away"
                at += count
        for copy in step.copies:
            assert not set(copy.sources.tolist()) & set(copy.targets.tolist()), (
                "a copy of a copy: they are made all at once"
            )
            for source, target in zip(copy.sources.tolist(), copy.targets.tolist(), strict=True):
                self.slots[copy.group][target] = self.slots[copy.group][source]
                self.written[copy.group][target] = self.written[copy.group][source]

    def _check_shape(self, step: SchedulerOutput) -> None:
        rows = step.rows.tolist()
        assert rows or self.prepares, "an empty step"
        assert len(set(rows)) == len(rows), "a row twice in a step"
        ends = {row: len(self.rows[row].tokens) for row in rows}
        if len(step.drafts):
            for row, count in zip(rows, step.num_scheduled_tokens.tolist(), strict=True):
                assert ends[row] == self.rows[row].num_computed_tokens + 1, "a prompt in a step with drafts"
                ends[row] += count - 1
            assert len(step.drafts) == (step.num_scheduled_tokens - 1).sum()
        samples, kinds = [], []
        for row, start, count in zip(rows, step.starts.tolist(), step.num_scheduled_tokens.tolist(), strict=True):
            assert count > 0
            assert start == self.rows[row].num_computed_tokens, "a row goes on where it has not stopped"
            assert start + count <= ends[row], "a token is computed that nobody knows"
            if start + count == ends[row]:
                samples.append(row)
            kinds.append(start + count < ends[row] or (count > 1 and not len(step.drafts)))
        assert samples == step.samples.tolist()
        assert kinds == sorted(kinds), "rows that decode do not come first"
        fed = [self.sampled_by.get(row, -1) for row in rows]
        assert step.after == max(fed, default=-1), "`after` is not the newest step whose tokens are fed on"

    def _add_drafts(self, step: SchedulerOutput) -> None:
        """Those of a row follow its newest token until the row is sampled."""
        at = 0
        for row, count in zip(step.rows.tolist(), step.num_scheduled_tokens.tolist(), strict=True):
            for token in step.drafts[at : at + count - 1].tolist() if len(step.drafts) else ():
                self.rows[row].add(token)
            at += count - 1

    def _write(self, step: int, row: int, start: int, count: int, *, verifies: bool) -> None:
        state = self.rows[row]
        for group, spec in enumerate(self.plan.groups):
            table = state.tables[group]
            if spec.kind == "state":
                assert len(table) == spec.states
                before = state.hashes[start - 1] if start else self.slots[group][table[0], 0]
                assert self.slots[group][table[0], 0] == before, "a row goes on from a state that is not its own"
                behind = range(start, start + count) if verifies else [start + count - 1]
                self.slots[group][table[: len(behind)], 0] = state.hashes[behind]
                continue
            assert len(table) * spec.block_size >= start + count, "no block for a token"
            for position in range(start, start + count):
                block, offset = table[position // spec.block_size], position % spec.block_size
                assert self.written[group][block, offset] != step, "a slot is written twice in a step"
                self.slots[group][block, offset] = state.hashes[position]
                self.written[group][block, offset] = step
        state.num_computed_tokens = start + count

    def _read(self, step: int, row: int, start: int, end: int) -> None:
        for group, spec in enumerate(self.plan.groups):
            if spec.kind != "state":
                table = self.rows[row].tables[group]
                for position in range(first_seen(spec, start), start):
                    at = (table[position // spec.block_size], position % spec.block_size)
                    assert self.written[group][at] < step, "a token is read that another row of this step writes"

    def _check_all(self) -> None:
        """Every open row has the history that it sees in its blocks, whether it took part or not; no block that is
        written to is in two tables."""
        for group, spec in enumerate(self.plan.groups):
            states = [state.tables[group] for state in self.rows.values()]
            if spec.kind == "state":
                slots = [slot for table in states for slot in table]
                assert len(slots) == len(set(slots)), "two requests share a state"
                for row in self.rows.values():
                    known = row.hashes[: row.num_computed_tokens][-1:]
                    assert np.isin(known, self.slots[group][row.tables[group], 0]).all(), "a row lost its state"
                continue
            held = max((np.count_nonzero(table) for table in states), default=0)
            self.most_held[group] = max(self.most_held[group], held)
            for state in self.rows.values():
                blocks = state.tables[group][: -(-state.num_computed_tokens // spec.block_size)]
                seen = slice(first_seen(spec, state.num_computed_tokens), state.num_computed_tokens)
                held = self.slots[group][blocks].reshape(-1)[seen]
                assert np.array_equal(held, state.hashes[seen]), "a row's history is not in its blocks"

    def _sample(self, step: SchedulerOutput) -> StepOutput:
        errors, rows, counts, tokens = [], [], [], []
        lengths = dict(zip(step.rows.tolist(), step.num_scheduled_tokens.tolist(), strict=True))
        for row in step.samples.tolist():
            state = self.rows[row]
            known = len(state.tokens) - (lengths[row] - 1 if len(step.drafts) else 0)
            drawn = [next_token(int(state.hashes[known - 1]), state.seed)]
            while known < len(state.tokens) and state.tokens[known] == drawn[-1]:
                known += 1
                drawn.append(next_token(int(state.hashes[known - 1]), state.seed))
            state.cut(known)
            state.add(drawn[-1])
            self.sampled_by[row] = step.step
            rows.append(row)
            counts.append(len(drawn))
            tokens += drawn
        for row in step.rows.tolist():
            if self.rows[row].request_id in self.fail:
                errors.append(RowError(row, "it broke"))
        return StepOutput(step.step, int32(rows), int32(counts), int32(tokens), errors=errors)
