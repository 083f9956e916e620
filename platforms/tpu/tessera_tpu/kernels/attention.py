"""Ragged paged attention: tiles of queries over the blocks of their row, by an online softmax (arXiv:2205.14135).

Keys and values stay in the device's large memory. A tile copies the blocks that it sees, a few at a time into one of
two buffers, while it computes with the other: those from its window's start to its own last query, and no others. So
the time of a tile is that of what it sees, however long a row is, and however wide its block table.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array as Jax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from tessera_tpu.kernels.memory import in_hbm
from tessera_tpu.paged import LEAST, Planes

KEYS = 256
"""Keys that a tile computes with at a time: enough for a matrix unit of 256, in a few copies."""
LANES = 128


def attend(
    q: Jax,
    planes: Planes,
    row: Jax,
    tables: Jax,
    first: Jax,
    count: Jax,
    *,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    interpret: Any = False,
) -> Jax:
    """As tessera_tpu.paged.attend(). interpret: what pallas_call() takes."""
    tiles, places, heads, dim = q.shape
    _, of_heads, size = planes[0].shape[:3]
    group = heads // of_heads
    pages = max(min(KEYS // size, tables.shape[1]), 1)
    by_head = q.reshape(tiles, places, of_heads, group, dim).transpose(0, 2, 1, 3, 4)
    by_head = by_head.reshape(tiles, of_heads, places * group, dim)
    one = pl.BlockSpec((1, of_heads, places * group, dim), lambda tile, *_: (tile, 0, 0, 0))
    number = len(planes)
    buffers = [pltpu.VMEM((2, of_heads, pages * size, *plane.shape[3:]), plane.dtype) for plane in planes]
    narrow = pltpu.VMEM((of_heads, places * group, LANES), jnp.float32)
    mixed = pl.pallas_call(
        partial(_tile, number, group=group, scale=scale, window=window, softcap=softcap),
        out_shape=jax.ShapeDtypeStruct(by_head.shape, q.dtype),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=4,
            grid=(tiles,),
            in_specs=[one, *[pl.BlockSpec(memory_space=pltpu.HBM)] * number],
            out_specs=one,
            scratch_shapes=[
                *buffers,
                narrow,
                narrow,
                pltpu.VMEM((of_heads, places * group, dim), jnp.float32),
                pltpu.SemaphoreType.DMA((2, number, pages)),
            ],
        ),
        interpret=interpret,
        name="ragged_paged_attention",
    )(row, first, count, tables, by_head, *in_hbm(planes, interpret))
    return mixed.reshape(tiles, of_heads, places, group, dim).transpose(0, 2, 1, 3, 4).reshape(q.shape)


def _tile(
    planes: int, row: Any, first: Any, count: Any, tables: Any, q: Any, *parts: Any,
    group: int, scale: float, window: int | None, softcap: float | None,
) -> None:  # fmt: skip
    """q [1, Hk, Q * G, D]. parts: the planes, in large memory; out, as q; of each plane two buffers, [2, Hk, K, D] or
    of scales [2, Hk, K]; peak and total [Hk, Q * G, 128], of the scores so far, the same in every lane; mixed [Hk,
    Q * G, D]; semaphores [2, planes, blocks of a buffer] of the copies into each buffer."""
    sources, out, buffers = parts[:planes], parts[planes], parts[planes + 1 :][:planes]
    peak, total, mixed, arrived = parts[-4:]
    *scale_buffers, key_buffer, value_buffer = buffers
    tile = pl.program_id(0)
    _, of_heads, width, _ = key_buffer.shape
    size = sources[0].shape[2]
    begin, number = first[tile], count[tile]
    end = begin + number
    seen = 0 if window is None else jnp.maximum(begin - (window - 1), 0)
    step_of = seen // width
    steps = jnp.where(number > 0, pl.cdiv(end, width) - step_of, 0)

    def each_page(step: Any, do: Any) -> None:
        slot = jax.lax.rem(step, 2)
        for page in range(width // size):
            place = (step_of + step) * (width // size) + page

            @pl.when((place * size < end) & ((place + 1) * size > seen))
            def copy(place: Any = place, page: int = page) -> None:
                block, at = tables[row[tile], place], pl.ds(page * size, size)
                for which, (source, buffer) in enumerate(zip(sources, buffers, strict=True)):
                    do(pltpu.make_async_copy(source.at[block], buffer.at[slot, :, at], arrived.at[slot, which, page]))

    peak[...] = jnp.full_like(peak, LEAST)
    total[...] = jnp.zeros_like(total)
    mixed[...] = jnp.zeros_like(mixed)

    @pl.when(steps > 0)
    def begin_copying() -> None:
        each_page(0, lambda copy: copy.start())

    def compute(step: Any, _: Any) -> None:
        @pl.when(step + 1 < steps)
        def copy_ahead() -> None:
            each_page(step + 1, lambda copy: copy.start())

        each_page(step, lambda copy: copy.wait())
        slot, start = jax.lax.rem(step, 2), (step_of + step) * width
        shape = q.shape[2], width
        key = start + jax.lax.broadcasted_iota(jnp.int32, shape, 1)
        query = begin + jax.lax.broadcasted_iota(jnp.int32, shape, 0) // group
        visible = (key <= query) & (query < end)
        if window is not None:
            visible &= key > query - window

        def copied(values: Any, axis: int) -> Any:
            """0 for what was not copied, which may be NaN."""
            at = start + jax.lax.broadcasted_iota(jnp.int32, (width, 1) if axis == 0 else (1, width), axis)
            return jnp.where((at < end) & (at >= seen), values, 0)

        for head in range(of_heads):
            keys, values = key_buffer[slot, head], value_buffer[slot, head]
            scales = [buffer[slot, pl.ds(head, 1)] for buffer in scale_buffers]  # [1, K]
            if scales:
                scales[1] = copied(scales[1], 1)
            else:
                values = copied(values, 0)
            _add(
                q[0, head], keys, values, scales, visible, peak.at[head], total.at[head], mixed.at[head], scale, softcap
            )

    jax.lax.fori_loop(0, steps, compute, None)
    out[0] = (mixed[...] / jnp.maximum(total[:, :, :1], 1e-30)).astype(out.dtype)


def _add(
    q: Any, k: Any, v: Any, scales: Any, visible: Any, peak: Any, total: Any, mixed: Any, scale: float,
    softcap: float | None,
) -> None:  # fmt: skip
    """Adds K keys of a head to the softmax of its queries. scales: of keys and of values [1, K], which multiply the
    scores and the weights instead; empty if these have none."""
    exact = jax.lax.Precision.HIGHEST if q.dtype == jnp.float32 else None
    scores = jax.lax.dot_general(
        q, k.astype(q.dtype), (((1,), (1,)), ((), ())), precision=exact, preferred_element_type=jnp.float32
    )
    scores *= scale * scales[0] if scales else scale
    if softcap is not None:
        scores = jnp.tanh(scores / softcap) * softcap
    scores = jnp.where(visible, scores, LEAST)
    before = peak[:, :1]
    after = jnp.maximum(before, scores.max(-1, keepdims=True))
    weights = jnp.where(visible, jnp.exp(scores - after), 0.0)
    kept = jnp.exp(before - after)
    sums = total[:, :1] * kept + weights.sum(-1, keepdims=True)
    product = jax.lax.dot_general(
        (weights * scales[1] if scales else weights).astype(q.dtype), v.astype(q.dtype), (((1,), (0,)), ((), ())),
        precision=exact, preferred_element_type=jnp.float32,
    )  # fmt: skip
    mixed[...] = mixed[...] * kept + product
    peak[...] = jnp.broadcast_to(after, peak.shape)
    total[...] = jnp.broadcast_to(sums, total.shape)
