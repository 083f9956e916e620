"""--check-kv-cache: a record of who wrote each slot of the KV cache, which every launch of a step is checked against.

It knows what slots should hold, not what their bytes are, so it finds mistakes in blocks, tables, copies and prefixes
on any platform, and none in kernels. It observes the launches of a runner; without the flag there is no observer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any

import numpy as np
from torch import Tensor

from tessera.arrays import Array, ranges
from tessera.errors import EngineStepError
from tessera.platform.device import Device, Future
from tessera.platform.launch import Launch
from tessera.platform.runner import CacheGroup, CachePlan
from tessera.runner.input_batch import write_blocks
from tessera.runner.observers import LaunchObserver
from tessera.step import BlockCopy, RowOpened, SchedulerOutput

# ---- what a launch says


@dataclass(frozen=True)
class HostLaunch:
    """What kernels read of a Launch, as host arrays: its fields of the same names. verifies: it verifies drafts."""

    num_rows: int
    verifies: bool
    rows: Array
    tokens: Array
    positions: Array
    query_start_loc: Array
    query_lens: Array
    seq_lens: Array
    slot_mapping: Sequence[Array]
    block_tables: Sequence[Array]


class CopiedLaunch:
    """A HostLaunch on its way from the device. Nobody waits for it while the step is launched, so steps in flight
    overlap as they do without it; the tensors are cloned first, because the next launch takes their buffers."""

    def __init__(self, launch: Launch, device: Device) -> None:
        def copied(tensor: Tensor) -> Future[Any]:
            return device.to_host(tensor.clone())

        names = ("rows", "tokens", "positions", "query_start_loc", "query_lens", "seq_lens")
        self._num_rows, self._verifies = launch.num_rows, launch.key.kind == "verify"
        self._parts = {name: copied(getattr(launch, name)) for name in names}
        self._slots = [copied(slots) for slots in launch.slot_mapping]
        self._tables = [copied(table) for table in launch.block_tables]

    def result(self) -> HostLaunch:
        """Waits for the copies."""
        parts = {name: part.result() for name, part in self._parts.items()}
        slots, tables = ([part.result() for part in parts] for parts in (self._slots, self._tables))
        return HostLaunch(self._num_rows, self._verifies, **parts, slot_mapping=slots, block_tables=tables)


# ---- what slots hold


@dataclass(frozen=True)
class SlotWriter:
    request: str
    step: int


@dataclass(frozen=True)
class Writes:
    """The tokens whose keys and values a launch writes, [n] each. places: where they stand in the launch. within: the
    index of each among those of its row."""

    rows: Array
    positions: Array
    places: Array
    within: Array
    identities: Array


class GroupRecord:
    """A cache group: who holds its blocks, and what their slots hold. A state counts as a block of one slot.

    The block after the last one is never written, and numbers that are no block's stand for it."""

    def __init__(self, number: int, group: CacheGroup, plan: CachePlan) -> None:
        self.number, self.num_blocks, self.window = number, group.num_blocks, group.window
        self.is_state = group.kind == "state"
        self.size = 1 if self.is_state else group.block_size
        shape = (group.num_blocks + 1, self.size)
        # [rows, blocks]: the block table of each row.
        self.tables: Array = np.zeros((plan.num_rows, group.blocks_of(plan.max_model_len)), np.int32)
        # Of what each slot holds, [num_blocks + 1, size]: identity, position, and its SlotWriter, which is None where
        # nothing was written yet.
        self.identity: Array = np.zeros(shape, np.uint64)
        self.position: Array = np.zeros(shape, np.int32)
        self.writer: Array = np.full(shape, None, object)

    def column(self, position: Any) -> Any:
        """Where a block table has the block of a position. Takes arrays too."""
        return position * 0 if self.is_state else position // self.size

    def slot(self, table: Array, position: int) -> int:
        """The slot of a position through a block table; in the null block if the table ends before it."""
        column = self.column(position)
        block = int(table[column]) if column < len(table) else 0
        return block * self.size + (0 if self.is_state else position % self.size)

    def contents(self, table: Array, low: int, high: int) -> Array:
        """Identities at positions low to high (exclusive) through a block table; fewer if the table ends before."""
        first = self.column(low)
        blocks = table[first : self.column(high - 1) + 1].clip(0, self.num_blocks)
        skipped = 0 if self.is_state else low - first * self.size
        found: Array = self.identity[blocks].reshape(-1)[skipped : skipped + high - low]
        return found

    def reads(self, start: int, end: int) -> tuple[int, int]:
        """The first position that queries start to end (exclusive) read, and the one after the last. Queries of a state
        read what the token before them left behind."""
        if self.is_state:
            return max(start - 1, 0), start
        return 0 if self.window is None else max(start - self.window + 1, 0), end

    def written(self, launch: HostLaunch, writes: Writes) -> tuple[Array, Writes]:
        """The slots of all places in the launch, and what is written: a state once a row, as the last token left it,
        or, where drafts are verified, one behind each token."""
        if not self.is_state:
            return launch.slot_mapping[self.number], writes
        table = launch.block_tables[self.number]
        if launch.verifies:
            slots = table[np.cumsum(writes.within == 0) - 1, writes.within]
            padding = table[launch.num_rows :, 0]
            return np.concatenate((slots, padding)), replace(writes, places=np.arange(len(slots)))
        last = np.flatnonzero(np.diff(writes.rows, append=-1))
        places, first = np.arange(len(last)), np.zeros(len(last), np.int64)
        states = Writes(writes.rows[last], writes.positions[last], places, first, writes.identities[last])
        return table[:, 0], states

    def columns(self, writes: Writes) -> Array:
        """Where in their rows' block tables what is written goes."""
        columns: Array = writes.within if self.is_state else self.column(writes.positions)
        return columns

    def write(self, slots: Array, writes: Writes, writers: Array) -> None:
        """writers: by row."""
        self.identity.reshape(-1)[slots] = writes.identities
        self.position.reshape(-1)[slots] = writes.positions
        self.writer.reshape(-1)[slots] = writers[writes.rows]

    def copy(self, copy: BlockCopy) -> None:
        for part in (self.identity, self.position, self.writer):
            part[copy.targets] = part[copy.sources]

    def where(self, slot: int) -> str:
        return f"group {self.number}, block {slot // self.size}, slot {slot}"

    def describe(self, slot: int, position: int) -> str:
        """What is there in place of a position."""
        block, offset = divmod(slot, self.size)
        if not 0 < block < self.num_blocks:
            return "no block of the group" if block else "the null block"
        writer, stored = self.writer[block, offset], int(self.position[block, offset])
        if writer is None:
            return "nothing, as it was never written"
        other = " after other tokens" if stored == position else ""
        return f"position {stored} of request '{writer.request}'{other}, written in step {writer.step}"


class KVCanary:
    """Follows steps in their order, and raises EngineStepError at the first that is wrong: a row reads a slot that does
    not hold the token it needs, writes over what another row needs, or writes outside its blocks.

    The identity of what a slot holds is a hash of the row's tokens up to its position, and of its cache key. Keys and
    values follow from these, so a block that was found by its prefix, shared with a sibling or copied is right, whoever
    wrote it.
    """

    def __init__(self, plan: CachePlan) -> None:
        self.step = -1
        # Of the groups of tokens and states. What encoders made is no row's tokens, and is not followed.
        self.records = [
            GroupRecord(number, group, plan) for number, group in enumerate(plan.groups) if group.kind != "cross"
        ]
        # By row: the ids of requests.
        self.requests = [""] * plan.num_rows
        # [rows]: tokens in the cache; -1: the row is free.
        self.lengths: Array = np.full(plan.num_rows, -1, np.int32)
        # [rows]: how many tokens the host knew when the row was opened; the device sampled the others.
        self.host_tokens: Array = np.zeros(plan.num_rows, np.int32)
        # [rows]: what the identities of a row begin with, by its cache key.
        self.seeds: Array = np.zeros(plan.num_rows, np.uint64)
        # [rows, max_model_len]: the identity of each position.
        self.expected: Array = np.zeros((plan.num_rows, plan.max_model_len), np.uint64)
        # A sum of tokens times random odd weights, modulo 2**64: a hash of every prefix at once.
        most = np.iinfo(np.uint64).max
        self.weights: Array = np.random.default_rng(0).integers(0, most, plan.max_model_len, np.uint64) | np.uint64(1)

    def check(self, step: SchedulerOutput, launches: Sequence[HostLaunch]) -> None:
        """launches: all of the step, in order. Raises EngineStepError."""
        self._apply(step)
        first = 0
        for launch in launches:
            part = slice(first, first + launch.num_rows)
            first = part.stop
            self._check_launch(launch, step.rows[part], step.starts[part], step.num_scheduled_tokens[part])

    # ---- what a step changes before its launches ---------------------------------------------------------------------

    def _apply(self, step: SchedulerOutput) -> None:
        self.step = step.step
        self.lengths[step.freed] = -1
        for opened in step.opened:
            self._open(opened)
        for record in self.records:
            delta = step.blocks[record.number]
            if len(delta.rows):
                write_blocks(record.tables, delta)
        for copy in step.copies:
            self._copy(copy)

    def _open(self, opened: RowOpened) -> None:
        row, count = opened.row, len(opened.tokens)
        self.requests[row], self.lengths[row], self.host_tokens[row] = (
            opened.request_id,
            opened.num_computed_tokens,
            count,
        )
        self.seeds[row] = int.from_bytes(sha256(opened.cache_key).digest()[:8], "little")
        self.expected[row, :count] = self._terms(opened.tokens, slice(count)).cumsum() + self.seeds[row]
        for record in self.records:
            record.tables[row] = 0

    def _terms(self, tokens: Array, positions: Any) -> Array:
        """What each token adds to the identities from its position on."""
        terms: Array = (tokens.astype(np.uint64) + np.uint64(1)) * self.weights[positions]
        return terms

    def _copy(self, copy: BlockCopy) -> None:
        record = next(record for record in self.records if record.number == copy.group)
        record.copy(copy)
        holders = np.isin(record.tables, copy.targets).any(axis=1) & (self.lengths > 0)
        for row in np.flatnonzero(holders).tolist():
            end = int(self.lengths[row])
            self._check_row(record, row, record.tables[row], end, end, "keeps")

    # ---- a launch ----------------------------------------------------------------------------------------------------

    def _check_launch(self, launch: HostLaunch, rows: Array, starts: Array, lengths: Array) -> None:
        ends = starts + lengths
        writes = self._writes(launch, rows, starts, lengths)
        writers = np.empty(len(self.requests), object)
        for row in rows.tolist():
            writers[row] = SlotWriter(self.requests[row], self.step)
        for record in self.records:
            slots, wrote = record.written(launch, writes)
            if record.is_state:
                self._check_reads(record, launch, rows, starts, ends)
            self._check_slots(record, slots, wrote)
            self._check_holders(record, slots[wrote.places], wrote)
            record.write(slots[wrote.places], wrote, writers)
            if not record.is_state:
                self._check_reads(record, launch, rows, starts, ends)
        self.lengths[rows] = ends

    def _writes(self, launch: HostLaunch, rows: Array, starts: Array, lengths: Array) -> Writes:
        """What a launch of these rows writes. Raises EngineStepError where the device was told otherwise."""
        for name, found, right in (
            ("row", launch.rows, rows),
            ("query_lens", launch.query_lens, lengths),
            ("seq_lens", launch.seq_lens, starts + lengths),
        ):
            for at in np.flatnonzero(found[: len(rows)] != right)[:1]:
                raise self._error(rows[at], f"is launched with {name} {found[at]}: expected {right[at]}")
        owner, firsts = np.repeat(np.arange(len(rows)), lengths), np.cumsum(lengths) - lengths
        places, positions = ranges(launch.query_start_loc[: len(rows)], lengths), ranges(starts, lengths)
        told = launch.positions.take(places, mode="clip")
        for at in np.flatnonzero(told != positions)[:1]:
            raise self._error(rows[owner[at]], f"computes position {positions[at]} as position {told[at]}")
        terms = self._terms(launch.tokens[places], positions)
        sums = terms.cumsum()
        before = np.where(starts > 0, self.expected[rows, starts - 1], self.seeds[rows])
        identities, within = sums + (before + terms[firsts] - sums[firsts])[owner], ranges(0 * lengths, lengths)
        writes = Writes(rows[owner], positions, places, within, identities)
        drawn = positions >= self.host_tokens[writes.rows]
        self.expected[writes.rows[drawn], positions[drawn]] = writes.identities[drawn]
        return writes

    def _check_slots(self, record: GroupRecord, slots: Array, writes: Writes) -> None:
        """Rows write into blocks of the group, padding into the null block."""
        mine, size = slots[writes.places], record.size
        for at in np.flatnonzero((mine < size) | (mine >= record.num_blocks * size))[:1]:
            raise self._wrong_write(record, writes, at, mine, record.describe(int(mine[at]), -1))
        padding = np.ones(len(slots), bool)
        padding[writes.places] = False
        for slot in slots[padding & ((slots < 0) | (slots >= size))][:1]:
            raise EngineStepError(
                f"KV cache check: in step {self.step}, padding writes to {record.where(slot)}: expected the null block."
            )

    def _check_holders(self, record: GroupRecord, slots: Array, writes: Writes) -> None:
        """What a row writes over is needed by no other row, and nowhere else in its own table."""
        blocks, offsets = slots // record.size, slots % record.size
        writer, column, first = (np.full(record.num_blocks + 1, value, np.int64) for value in (-1, -1, record.size))
        writer[blocks], column[blocks] = writes.rows, record.columns(writes)
        np.minimum.at(first, blocks, offsets)
        for at in np.flatnonzero(writer[blocks] != writes.rows)[:1]:
            other = writer[blocks[at]]
            finding = f"that request '{self.requests[other]}' (row {other}) writes to the block in the same step"
            raise self._wrong_write(record, writes, at, slots, finding)
        width = self.lengths.max(initial=0) // record.size + 1
        held = record.tables[:, :width].clip(0, record.num_blocks)
        holders, columns = np.nonzero(writer[held] >= 0)
        block = held[holders, columns]
        needed = columns * record.size + first[block] < self.lengths[holders]
        for one in np.flatnonzero(needed & ((writer[block] != holders) | (column[block] != columns)))[:1]:
            at, holder = np.flatnonzero(blocks == block[one])[0], holders[one]
            finding = (
                f"{record.describe(int(slots[at]), -1)}, which request '{self.requests[holder]}' (row {holder}) needs"
            )
            raise self._wrong_write(record, writes, at, slots, finding)

    def _check_reads(self, record: GroupRecord, launch: HostLaunch, rows: Array, starts: Array, ends: Array) -> None:
        each = zip(rows.tolist(), launch.block_tables[record.number], starts.tolist(), ends.tolist(), strict=False)
        for row, table, start, end in each:
            self._check_row(record, row, table, start, end, "reads")

    def _check_row(self, record: GroupRecord, row: int, table: Array, start: int, end: int, verb: str) -> None:
        """What queries start to end (exclusive) of a row find through a block table is what they need."""
        low, high = record.reads(start, end)
        found, expected = record.contents(table, low, high), self.expected[row, low:high]
        if np.array_equal(found, expected):
            return
        wrong = np.flatnonzero(found != expected[: len(found)])
        position = low + (int(wrong[0]) if len(wrong) else len(found))
        slot = record.slot(table, position)
        raise self._error(
            row,
            f"{verb} position {position} in {record.where(slot)}: expected position {position} of its own tokens, "
            f"found {record.describe(slot, position)}",
        )

    def _wrong_write(self, record: GroupRecord, writes: Writes, at: int, slots: Array, finding: str) -> EngineStepError:
        where = record.where(int(slots[at]))
        return self._error(
            writes.rows[at],
            f"writes position {writes.positions[at]} to {where}: expected a block of its own, found {finding}",
        )

    def _error(self, row: int, text: str) -> EngineStepError:
        who = f"request '{self.requests[row]}' (row {row})"
        return EngineStepError(f"KV cache check: in step {self.step}, {who} {text}.")


# ---- the check as an observer of launches


class CheckedStep:
    """A step whose launches are copied to the host, and checked before its output is handed out."""

    def __init__(self, canary: KVCanary, device: Device, step: SchedulerOutput) -> None:
        self.canary, self.device, self.step = canary, device, step
        self.launches: list[CopiedLaunch] = []

    def observe(self, launch: Launch) -> None:
        self.launches.append(CopiedLaunch(launch, self.device))

    def finish(self) -> None:
        self.canary.check(self.step, [launch.result() for launch in self.launches])


class CanaryObserver(LaunchObserver):
    """Ends a step with EngineStepError where it reads or writes the wrong slots."""

    def allocate(self, plan: CachePlan, device: Device) -> None:
        self.canary, self.device = KVCanary(plan), device

    def begin(self, step: SchedulerOutput) -> CheckedStep:
        return CheckedStep(self.canary, self.device, step)
