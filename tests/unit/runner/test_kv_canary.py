"""The check of the KV cache lets right steps pass and names what is wrong in the others, in one line."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest

from tessera.arrays import int32
from tessera.errors import EngineStepError
from tessera.platform import CacheGroup, CachePlan
from tessera.runner.kv_canary import HostLaunch, KVCanary
from tessera.sampling_params import SamplingParams
from tessera.step import BlockCopy, BlockDelta, RowOpened, SchedulerOutput

PAGED = CacheGroup((0,), "paged", 4, 1, 12)
WINDOW = CacheGroup((0,), "window", 4, 1, 12, window=5)
STATE = CacheGroup((0,), "state", 0, 1, 5)
ROWS, LENGTH, PADDING = 4, 32, 3
SHARED = [7, 5, 7, 9, 11, 3, 2, 8]


class Replay:
    """Steps whose blocks a test chooses, with the launch that a right builder makes of each."""

    def __init__(self, group: CacheGroup = PAGED) -> None:
        self.group, self.number = group, -1
        self.canary = KVCanary(CachePlan((group,), ROWS, LENGTH))
        self.table = np.zeros((ROWS, group.blocks_of(LENGTH)), np.int32)
        self.tokens: dict[int, list[int]] = {}

    def step(
        self,
        work: Mapping[int, tuple[int, int]],
        *,
        opened: Sequence[RowOpened] = (),
        freed: Sequence[int] = (),
        blocks: Mapping[int, tuple[int, Sequence[int]]] | None = None,
        copies: Sequence[tuple[int, int]] = (),
        **told,
    ) -> None:
        """work: by row, where it starts and how many tokens it computes. blocks: by row, a column and the blocks from
        there on. told: what the launch says instead, by the fields of HostLaunch."""
        self.number += 1
        for one in opened:
            self.tokens[one.row], self.table[one.row] = one.tokens.tolist(), 0
        given = blocks or {}
        for row, (column, ids) in given.items():
            self.table[row, column : column + len(ids)] = ids
        sources, targets = zip(*copies, strict=True) if copies else ((), ())
        step = SchedulerOutput(
            self.number,
            -1,
            int32(list(work)),
            int32([start for start, _ in work.values()]),
            int32([count for _, count in work.values()]),
            int32(),
            [
                BlockDelta(
                    int32(list(given)),
                    int32([column for column, _ in given.values()]),
                    int32([len(ids) for _, ids in given.values()]),
                    int32([block for _, ids in given.values() for block in ids]),
                )
            ],
            list(opened),
            int32(freed),
            [BlockCopy(0, int32(sources), int32(targets))] if copies else [],
        )
        self.canary.check(step, [replace(self.launch(work), **told)])

    def launch(self, work: Mapping[int, tuple[int, int]]) -> HostLaunch:
        tokens, positions, slots = [], [], []
        for row, (start, count) in work.items():
            known = self.tokens[row]
            known += [row] * (start + count - len(known))  # drawn on the device
            for position in range(start, start + count):
                tokens.append(known[position])
                positions.append(position)
                if self.group.kind != "state":
                    block, offset = divmod(position, self.group.block_size)
                    slots.append(self.table[row, block] * self.group.block_size + offset)
        lengths = [count for _, count in work.values()]
        padding = [0] * PADDING
        return HostLaunch(
            len(work),
            False,
            int32([*work, ROWS]),
            int32(tokens + padding),
            int32(positions + padding),
            int32(np.cumsum([0, *lengths, 0])),
            int32([*lengths, 0]),
            int32([*(start + count for start, count in work.values()), 0]),
            [int32(slots + padding if slots else ())],
            [np.concatenate((self.table[list(work)], np.zeros((1, self.table.shape[1]), np.int32)))],
        )


def opened(row: int, tokens: Sequence[int], computed: int = 0, *, cache_key: bytes = b"") -> RowOpened:
    return RowOpened(row, "abcd"[row], int32(tokens), len(tokens), computed, SamplingParams(), 0, cache_key=cache_key)


def said(text: str) -> str:
    return f"^{re.escape(f'KV cache check: in step {text}.')}$"


# ---- right steps


def test_prompts_in_chunks_answers_prefixes_forks_and_rows_used_again_pass() -> None:
    run = Replay()
    run.step({0: (0, 3)}, opened=[opened(0, SHARED)], blocks={0: (0, [1, 2])})
    run.step({0: (3, 5), 1: (0, 2)}, opened=[opened(1, [1, 2])], blocks={1: (0, [3])})
    run.step({0: (8, 1), 1: (2, 1)}, blocks={0: (2, [4])})
    # The first two blocks are found by another request, the third is shared until row 2 writes into it.
    run.step({3: (8, 2)}, opened=[opened(3, [*SHARED, 1, 1], 8)], blocks={3: (0, [1, 2, 5])})
    run.step(
        {0: (9, 1), 2: (9, 1)}, opened=[opened(2, [*SHARED, 0, 6], 9)], blocks={2: (0, [1, 2, 6])}, copies=[(4, 6)]
    )
    run.step({0: (10, 1), 2: (10, 1), 3: (10, 1), 1: (3, 1)})
    # Row 0 goes, and its own block with it; what it shared stays with the others.
    run.step({0: (0, 4), 2: (11, 1)}, freed=[0], opened=[opened(0, [4] * 4)], blocks={0: (0, [4])})


def test_what_the_window_has_left_behind_may_go() -> None:
    run = Replay(WINDOW)
    run.step({0: (0, 8)}, opened=[opened(0, SHARED)], blocks={0: (0, [1, 2])})
    run.step({0: (8, 1), 1: (0, 4)}, opened=[opened(1, [1] * 4)], blocks={0: (0, [0, 2, 3]), 1: (0, [1])})


def test_each_draft_leaves_a_state_and_the_row_goes_on_from_the_last_right_one() -> None:
    run = Replay(CacheGroup((0,), "state", 0, 1, 9, states=3))
    run.step({0: (0, 8)}, opened=[opened(0, SHARED)], blocks={0: (0, [1, 2, 3])})
    run.step({0: (8, 3)}, verifies=True)
    run.tokens[0][10:] = []  # the second draft is wrong
    run.step({0: (10, 1)}, blocks={0: (0, [2, 1])})


@pytest.mark.parametrize("first", [3, 1])
def test_a_state_of_another_draft_is_found(first: int) -> None:
    run = Replay(CacheGroup((0,), "state", 0, 1, 9, states=3))
    run.step({0: (0, 8)}, opened=[opened(0, SHARED)], blocks={0: (0, [1, 2, 3])})
    run.step({0: (8, 3)}, verifies=True)
    run.tokens[0][10:] = []
    with pytest.raises(EngineStepError, match=r"request 'a' \(row 0\) reads position 9 in group 0"):
        run.step({0: (10, 1)}, blocks={0: (0, [first, 2, 4 - first])})


def test_a_state_goes_from_token_to_token_and_begins_anew_with_a_row() -> None:
    run = Replay(STATE)
    run.step(
        {0: (0, 8), 1: (0, 2)}, opened=[opened(0, SHARED), opened(1, [4, 4, 4])], blocks={0: (0, [1]), 1: (0, [2])}
    )
    run.step({0: (8, 1), 1: (2, 1)})
    run.step({0: (9, 1), 1: (0, 3)}, freed=[1], opened=[opened(1, [4, 5, 6])], blocks={1: (0, [2])})


# ---- wrong ones


@pytest.fixture
def run() -> Replay:
    """Row 0 has computed eight tokens in blocks 1 and 2, row 1 two in block 3."""
    run = Replay()
    first = [opened(0, SHARED), opened(1, [1, 2])]
    run.step({0: (0, 8), 1: (0, 2)}, opened=first, blocks={0: (0, [1, 2]), 1: (0, [3])})
    return run


def test_a_block_that_was_freed_too_early(run: Replay) -> None:
    with pytest.raises(
        EngineStepError,
        match=said(
            "1, request 'c' (row 2) writes position 0 to group 0, block 2, slot 8: expected a block of its own, found "
            "position 4 of request 'a', written in step 0, which request 'a' (row 0) needs"
        ),
    ):
        run.step({2: (0, 1)}, opened=[opened(2, [6])], blocks={2: (0, [2])})


def test_a_block_that_two_rows_write_at_once(run: Replay) -> None:
    with pytest.raises(
        EngineStepError,
        match=said(
            "1, request 'a' (row 0) writes position 8 to group 0, block 4, slot 16: expected a block of its own, found "
            "that request 'c' (row 2) writes to the block in the same step"
        ),
    ):
        run.step({0: (8, 1), 2: (0, 1)}, opened=[opened(2, [6])], blocks={0: (2, [4]), 2: (0, [4])})


def test_a_slot_that_two_tokens_of_a_row_write() -> None:
    run, pads = Replay(), [0] * PADDING
    with pytest.raises(
        EngineStepError,
        match=said(
            "0, request 'a' (row 0) reads position 1 in group 0, block 1, slot 5: expected position 1 of its own "
            "tokens, found position 2 of request 'a', written in step 0"
        ),
    ):
        run.step({0: (0, 3)}, opened=[opened(0, SHARED)], blocks={0: (0, [1])}, slot_mapping=[int32([4, 5, 5, *pads])])


def test_a_table_of_another_row(run: Replay) -> None:
    swapped = np.concatenate((run.table[[1, 0]], run.table[:1]))
    with pytest.raises(
        EngineStepError,
        match=said(
            "1, request 'a' (row 0) reads position 0 in group 0, block 3, slot 12: expected position 0 of its own "
            "tokens, found position 0 of request 'b' after other tokens, written in step 0"
        ),
    ):
        run.step({0: (8, 1), 1: (2, 1)}, blocks={0: (2, [4])}, block_tables=[swapped])


def test_a_stale_prefix(run: Replay) -> None:
    run.step({2: (0, 4)}, freed=[0], opened=[opened(2, [6] * 4)], blocks={2: (0, [2])})
    with pytest.raises(
        EngineStepError,
        match=said(
            "2, request 'd' (row 3) reads position 4 in group 0, block 2, slot 8: expected position 4 of its own "
            "tokens, found position 0 of request 'c', written in step 1"
        ),
    ):
        run.step({3: (8, 1)}, opened=[opened(3, [*SHARED, 1], 8)], blocks={3: (0, [1, 2, 5])})


def test_a_prefix_of_another_cache_key(run: Replay) -> None:
    with pytest.raises(
        EngineStepError, match="expected position 0 of its own tokens, found position 0 of request 'a' after other"
    ):
        run.step({3: (8, 1)}, opened=[opened(3, [*SHARED, 1], 8, cache_key=b"x")], blocks={3: (0, [1, 2, 5])})


def test_a_copy_of_the_wrong_block(run: Replay) -> None:
    with pytest.raises(
        EngineStepError,
        match=said(
            "1, request 'c' (row 2) keeps position 4 in group 0, block 5, slot 20: expected position 4 of its own "
            "tokens, found position 0 of request 'b', written in step 0"
        ),
    ):
        run.step({2: (7, 1)}, opened=[opened(2, SHARED, 7)], blocks={2: (0, [1, 5])}, copies=[(3, 5)])


def test_a_block_that_is_missing_and_a_table_that_is_too_short(run: Replay) -> None:
    with pytest.raises(
        EngineStepError,
        match=said(
            "1, request 'a' (row 0) writes position 8 to group 0, block 0, slot 0: expected a block of its own, found "
            "the null block"
        ),
    ):
        run.step({0: (8, 1)})
    with pytest.raises(EngineStepError, match="reads position 8 in group 0, block 0, slot 0: .* found the null block"):
        run.step({0: (8, 1)}, blocks={0: (2, [4])}, block_tables=[run.table[:2, :2]])


@pytest.mark.parametrize("slot", [-4, 48])
def test_slots_outside_the_cache(run: Replay, slot: int) -> None:
    with pytest.raises(EngineStepError, match="expected a block of its own, found no block of the group"):
        run.step({0: (8, 1)}, blocks={0: (2, [4])}, slot_mapping=[int32([slot, 0, 0, 0])])
    with pytest.raises(EngineStepError, match=said(f"2, padding writes to group 0, block {slot // 4}, slot {slot}: "
                                                   "expected the null block")):  # fmt: skip
        run.step({0: (8, 1)}, blocks={0: (2, [4])}, slot_mapping=[int32([16, 0, slot, 0])])


@pytest.mark.parametrize("block", [-1, 12, 2**31 - 1])
def test_blocks_that_the_group_does_not_have(run: Replay, block: int) -> None:
    table = run.table[:2].copy()
    table[0, 1] = block
    with pytest.raises(EngineStepError, match="reads position 4 .* found no block of the group"):
        run.step({0: (8, 1)}, blocks={0: (2, [4])}, block_tables=[table])


def test_rows_lengths_and_positions_that_are_not_the_steps(run: Replay) -> None:
    pads = [0] * PADDING
    for told, text in (
        ({"rows": int32([1, 4])}, "is launched with row 1: expected 0"),
        ({"query_lens": int32([2, 0])}, "is launched with query_lens 2: expected 1"),
        ({"seq_lens": int32([8, 0])}, "is launched with seq_lens 8: expected 9"),
        ({"positions": int32([7, *pads])}, "computes position 8 as position 7"),
        ({"query_start_loc": int32([90, 91, 91])}, "computes position 8 as position 0"),
    ):
        with pytest.raises(EngineStepError, match=said(f"{run.number + 1}, request 'a' (row 0) {text}")):
            run.step({0: (8, 1)}, blocks={0: (2, [4])}, **told)


def test_a_prompt_whose_tokens_did_not_reach_the_device() -> None:
    run = Replay()
    with pytest.raises(EngineStepError, match="reads position 1 .* found position 1 of request 'a' after other tokens"):
        run.step({0: (0, 2)}, opened=[opened(0, SHARED)], blocks={0: (0, [1])}, tokens=int32([7, 0, 0, 0, 0]))


def test_a_state_of_another_row() -> None:
    run = Replay(STATE)
    first = [opened(0, SHARED), opened(1, [4, 4, 4])]
    run.step({0: (0, 8), 1: (0, 2)}, opened=first, blocks={0: (0, [1]), 1: (0, [2])})
    with pytest.raises(
        EngineStepError,
        match=said(
            "1, request 'a' (row 0) reads position 7 in group 0, block 2, slot 2: expected position 7 of its own "
            "tokens, found position 1 of request 'b', written in step 0"
        ),
    ):
        run.step({0: (8, 1), 1: (2, 1)}, block_tables=[int32([2, 1, 0])[:, None]])
    with pytest.raises(EngineStepError, match=r"which request 'b' \(row 1\) needs"):
        run.step({2: (0, 1)}, opened=[opened(2, [6])], blocks={2: (0, [2])})
