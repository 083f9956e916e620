"""The Pallas kernels, interpreted with detection of races, against core's reference and plain JAX."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src.pallas.mosaic.interpret import interpret_pallas_call as interpreter
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from tessera_tpu import kernels, paged
from tessera_tpu.mesh import DeviceMesh
from tessera_tpu.plan import AttentionPlan, Rows, Tiles

ONE = DeviceMesh(jax.devices("cpu")[:1])
RACES = pltpu.InterpretParams(detect_races=True)
"""And memory that nobody wrote is NaN."""


@dataclass
class Batch:
    """plan; planes [blocks, Hk, size, D] x 2, NaN where nobody wrote; of int8, those of scales come first."""

    plan: AttentionPlan
    planes: tuple[Any, ...]
    k: Any
    v: Any
    q: Any


def batch(
    lengths: list[tuple[int, int]], *, heads: int = 4, of_heads: int = 2, dim: int = 24, size: int = 8,
    dtype: str = "float32", tile: int = 4, padding: int = 3, seed: int = 0, scaled: bool = False,
) -> Batch:  # fmt: skip
    """lengths: of each row, tokens in the cache before, and tokens of the launch."""
    rng = np.random.default_rng(seed)
    counts = [count for _, count in lengths]
    tokens, number = sum(counts) + padding, len(lengths) + 1
    most = max(-(-(before + count) // size) for before, count in lengths)
    ids = rng.permutation(np.arange(1, 1 + most * len(lengths)))
    tables, row, positions = np.zeros((number + 1, most), np.int32), np.full(tokens, number), np.zeros(tokens, int)
    start, first, at = np.full(number, tokens), np.zeros(number, int), 0
    for each, (before, count) in enumerate(lengths):
        needed = -(-(before + count) // size)
        tables[each, :needed] = ids[each * most :][:needed]
        row[at : at + count], positions[at : at + count] = each, np.arange(before, before + count)
        start[each], first[each], at = at, before, at + count
    as_int = (jnp.asarray(one, jnp.int32) for one in (row, positions, start, [*counts, 0], first))
    rows = Rows(*as_int)
    width = max(counts)
    plan = AttentionPlan(rows, Tiles.from_rows(rows, width, tile), jnp.asarray(tables), width)
    shape = 1 + most * len(lengths), of_heads, size, dim
    planes = [np.full(shape, np.nan, np.float32) for _ in range(2)]
    for each, (before, _) in enumerate(lengths):
        for position in range(before):
            for plane in planes:
                plane[tables[each, position // size], :, position % size] = rng.normal(size=(of_heads, dim))
    q, k, v = (jnp.asarray(rng.normal(size=(tokens, n, dim)), dtype) for n in (heads, of_heads, of_heads))
    kept = tuple(jnp.asarray(plane, dtype) for plane in planes)
    if scaled:
        data, scales = zip(*map(paged.rounded, kept), strict=True)
        kept = (*scales, *data)
    return Batch(plan, kept, k, v, q)


MIXED = [(0, 13), (37, 1), (16, 8), (5, 3), (0, 1), (40, 9)]
DECODE = [(0, 1), (7, 1), (8, 1), (63, 1)]
VERIFY = [(9, 3), (15, 3), (16, 1)]
LAUNCHES = {"mixed": MIXED, "decode": DECODE, "verify": VERIFY}


def computed(which: Any, one: Batch, **options: Any) -> tuple[Any, Any]:
    """The planes, and the result of each token."""
    tiles = one.plan.tiles

    def call(planes: Any) -> tuple[Any, Any]:
        written = which.write(planes, one.k, one.v, one.plan)
        grouped = one.q[jnp.minimum(tiles.token, len(one.q) - 1)]
        options_of = {"scale": 0.2, "window": None, "softcap": None, **options}
        mixed = which.attend(grouped, written, one.plan, **options_of)
        return written, mixed.reshape(-1, *one.q.shape[1:])[tiles.place]

    return jax.jit(call)(one.planes)


def used(one: Batch, values: Any) -> Any:
    """Without padding."""
    return np.asarray(values, np.float32)[np.asarray(one.plan.rows.row) < len(one.plan.rows.start)]


WINDOW, BOTH = {"window": 7}, {"window": 17, "softcap": 2.0}


@pytest.mark.parametrize(
    ("launch", "dtype", "options", "scaled"),
    [
        ("mixed", "float32", {}, False), ("mixed", "float32", WINDOW, False), ("mixed", "bfloat16", BOTH, False),
        ("decode", "float32", WINDOW, False), ("decode", "float32", BOTH, False), ("decode", "bfloat16", {}, False),
        ("verify", "float32", {}, False), ("verify", "bfloat16", BOTH, False),
        ("mixed", "float32", WINDOW, True), ("decode", "bfloat16", {}, True), ("verify", "float32", BOTH, True),
    ],
)  # fmt: skip
def test_kernels_compute_what_plain_jax_does_without_races(
    launch: str, dtype: str, options: dict, scaled: bool
) -> None:
    one = batch(LAUNCHES[launch], dtype=dtype, scaled=scaled)
    planes, found = computed(kernels.Pallas(ONE, RACES), one, **options)
    assert not interpreter.races.races_found
    expected_planes, expected = computed(paged.Plain(), one, **options)
    for plane, right in zip(planes, expected_planes, strict=True):
        np.testing.assert_array_equal(np.asarray(plane[1:], np.float32), np.asarray(right[1:], np.float32))
    tolerance = 2e-6 if dtype == "float32" else 2e-2
    np.testing.assert_allclose(used(one, found), used(one, expected), atol=tolerance, rtol=tolerance)


def test_a_race_is_found() -> None:
    """What the others rely on."""

    def early(x: Any, out: Any, buffer: Any, arrived: Any) -> None:
        copy = pltpu.make_async_copy(x, buffer, arrived)
        copy.start()
        out[...] = buffer[...]
        copy.wait()

    x = jnp.ones((8, 128))
    call = pl.pallas_call(
        early,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        in_specs=[pl.BlockSpec(memory_space=pl.ANY)],
        scratch_shapes=[pltpu.VMEM(x.shape, x.dtype), pltpu.SemaphoreType.DMA],
        interpret=pltpu.InterpretParams(detect_races=True, dma_execution_mode="eager"),
    )
    jax.block_until_ready(call(x))
    assert interpreter.races.races_found


def test_blocks_before_a_window_are_not_read() -> None:
    """Their numbers are those of no block, which the interpreter would refuse to copy."""
    one, window = batch([(90, 1), (61, 1)], padding=0), 9
    tables = np.asarray(one.plan.tables).copy()
    expected = computed(kernels.Pallas(ONE, RACES), one, window=window)[1]
    for row, before in enumerate((90, 61)):
        tables[row, : (before + 1 - window) // 8] = 10**6
    far = replace(one, plan=replace(one.plan, tables=jnp.asarray(tables)))
    found = computed(kernels.Pallas(ONE, RACES), far, window=window)[1]
    np.testing.assert_array_equal(used(one, found), used(one, expected))
