"""A builder that keeps what stays the same makes the launches that a new one would, whatever came in between."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from tessera.arrays import int32
from tessera.platform import CacheGroup, CachePlan, Column, ConfigError, ExactShapes
from tessera.runner.device_buffers import DeviceBuffers, buffer_sizes
from tessera.runner.input_batch import CoreInputBatch, refuse_uncounted
from tessera.runner.launch_builder import LaunchBuilder
from tessera.sampling_params import SamplingParams
from tessera.step import BlockDelta, RowOpened, SchedulerOutput
from tessera.testing.reference import host_device
from tessera.testing.strict import strict_shapes

ROWS, LENGTH = 6, 64
PLAN = CachePlan(
    (
        CacheGroup((0,), "paged", 4, 1, 200),
        CacheGroup((1,), "window", 8, 1, 200, window=8),
        CacheGroup((2,), "state", 0, 1, ROWS + 1),
    ),
    ROWS,
    LENGTH,
)


class Side:
    """A builder and the rows it builds from."""

    def __init__(self, shapes):
        self.batch = CoreInputBatch(PLAN, [Column("push", "float32")], eos=(), vocab=100)
        sizes = buffer_sizes(16, 256, 16, PLAN, ["push"])
        self.builder = LaunchBuilder(
            PLAN, self.batch, torch.from_numpy(self.batch.tokens), shapes, DeviceBuffers(host_device(), sizes),
            index_dtype="int64",
        )  # fmt: skip

    def launches(self, step):
        """Each as the forward sees it, then its rows as the sampler does."""
        self.batch.apply(step)
        made = [(prepared, *seen(prepared.launch)) for prepared in self.builder.build(step)]
        assert all(made), "a step has launches"
        return [(key, of_forward, seen(self.builder.restore_rows(one))[1]["rows"]) for one, key, of_forward in made]


def seen(launch):
    """All that it says, copied: the next one takes its buffers."""
    said = {}
    for name, value in vars(launch).items():
        parts = list(value.values()) if isinstance(value, dict) else value
        parts = parts if isinstance(parts, list | tuple) else [parts]
        said[name] = [part.tolist() if isinstance(part, torch.Tensor | np.ndarray) else part for part in parts]
    return launch.key, said


class Script:
    """Steps as a scheduler might make them: rows come, decode, get blocks and go, in any order."""

    def __init__(self, seed):
        self.chance = random.Random(seed)
        self.computed: dict[int, int] = {}
        self.known: dict[int, int] = {}
        self.blocks = [0, 0, 0]

    def step(self, number):
        chance, opened = self.chance, []
        if self.computed and chance.random() < 0.1:
            self.computed.pop(chance.choice(list(self.computed)))
        free = [row for row in range(ROWS) if row not in self.computed]
        if free and (not self.computed or chance.random() < 0.15):
            opened.append(self.open(chance.choice(free)))
        rows = [row for row in self.computed if chance.random() < 0.97] or list(self.computed)
        lengths = {row: max(1, self.known[row] - self.computed[row]) for row in rows}
        rows.sort(key=lambda row: lengths[row] > 1)
        starts = [self.computed[row] for row in rows]
        deltas = [self.grow(group, rows, lengths, {one.row for one in opened}) for group in range(3)]
        for row in rows:
            self.computed[row] += lengths[row]
        taken = int32([lengths[row] for row in rows])
        for row in [row for row, count in self.computed.items() if count > LENGTH - 16]:
            self.computed.pop(row)
        return SchedulerOutput(number, -1, int32(rows), int32(starts), taken, int32(rows), deltas, opened)

    def open(self, row):
        self.computed[row], self.known[row] = 0, self.chance.choice([1, 3, 7])
        tokens = int32([self.chance.randrange(100) for _ in range(self.known[row])])
        asked = self.chance.choice([None, None, 2])
        params = SamplingParams(prompt_logprobs=asked)
        push = {"push": float(self.chance.randrange(5))}
        return RowOpened(row, f"request-{row}", tokens, len(tokens), 0, params, 0, columns=push)

    def grow(self, group, rows, lengths, new):
        size = PLAN.groups[group].block_size
        delta = []
        for row in rows:
            computed, after = self.computed[row], self.computed[row] + lengths[row]
            first, last = (-(-computed // size), -(-after // size)) if size else (0, int(row in new))
            if last > first:
                self.blocks[group] += last - first
                blocks = [(self.blocks[group] + number) % 199 + 1 for number in range(last - first)]
                delta.append((row, first, last - first, blocks))
        rows_of, starts, counts, blocks = zip(*delta, strict=True) if delta else ((), (), (), ())
        return BlockDelta(int32(rows_of), int32(starts), int32(counts), int32([block for of in blocks for block in of]))


def test_what_it_keeps_is_what_it_would_make():
    for seed in range(12):
        shapes = strict_shapes(16, 1) if seed % 3 == 0 else ExactShapes()
        old, script = Side(shapes), Script(seed)
        said = []
        for number in range(60):
            step, new = script.step(number), Side(shapes)
            for before in said:
                new.batch.apply(before)
            assert old.launches(step) == new.launches(step), (seed, number)
            said.append(step)


def test_tables_that_stay_are_not_copied_again():
    side, copied = Side(ExactShapes()), []
    put = side.builder.buffers.put
    side.builder.buffers.put = lambda name, values, dtype: copied.append(name) or put(name, values, dtype)
    opened = [RowOpened(0, "a", int32([1, 2, 3]), 3, 0, SamplingParams(), 0)]
    none = BlockDelta(int32(), int32(), int32(), int32())

    def decode(number, start, length, *, opened=(), block=None):
        first = none if block is None else BlockDelta(int32([0]), int32([start // 4]), int32([1]), int32([block]))
        rows = int32([0])
        deltas = [first, none, none]
        step = SchedulerOutput(number, -1, rows, int32([start]), int32([length]), rows, deltas, list(opened))
        copied.clear()
        side.launches(step)
        return set(copied)

    everything = decode(0, 0, 3, opened=opened, block=5)
    assert {"rows", "query_lens", "tables0", "tables1"} <= everything
    assert {"rows", "query_lens", "tables0"} <= decode(1, 3, 1), "one token is not three"
    standing = {"positions", "token_at", "seq_lens", "slot_mapping0", "slot_mapping1", "slot_mapping2", "column_push"}
    assert decode(2, 4, 1, block=6) == standing | {"tables0", "tables1", "tables2"}
    assert decode(3, 5, 1) == standing


def test_more_tokens_than_indices_can_count_are_refused() -> None:
    def config(rows: int, tokens: int) -> Any:
        return SimpleNamespace(
            scheduler=SimpleNamespace(max_num_seqs=rows), model=SimpleNamespace(max_model_len=tokens)
        )

    rows, tokens = (1 << 16) - 1, (1 << 15) - 1
    with pytest.raises(ConfigError, match="^65,535 requests of up to 32,767 tokens .* lower --max-num-seqs or"):
        refuse_uncounted(config(rows, tokens), "int32")
    refuse_uncounted(config(rows, tokens - 1), "int32")
    refuse_uncounted(config(rows, tokens), "int64")
