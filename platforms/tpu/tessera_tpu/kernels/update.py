"""Writes the keys and values of a launch into their blocks.

A token is a row of a tile, and memory is copied in tiles. So a block is read, the rows of its new tokens are put into
it, and it is written back; a block that is all new is only written.
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
from tessera_tpu.paged import Planes, stored
from tessera_tpu.plan import Pages


def write(planes: Planes, k: Jax, v: Jax, pages: Pages, interpret: Any = False) -> Planes:
    """k, v [T, Hk, D] into the planes, which are updated in place."""
    number, at = len(planes), jnp.minimum(pages.token, len(k) - 1)
    new = [jnp.swapaxes(values[at], 1, 2) for values in stored(planes, k, v)]  # [M, Hk, tokens, D], or of scales
    ones = [pl.BlockSpec((1, *each.shape[1:]), partial(_whole, each.ndim)) for each in new]
    kept = [pl.BlockSpec(memory_space=pltpu.HBM)] * number
    updated: list[Jax] = pl.pallas_call(
        partial(_page, number),
        out_shape=[pltpu.HBM(plane.shape, plane.dtype) for plane in planes],
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=3,
            grid=(len(pages.block),),
            in_specs=[*ones, *kept],
            out_specs=kept,
            scratch_shapes=[
                *(pltpu.VMEM(plane.shape[1:], plane.dtype) for plane in planes),
                pltpu.SemaphoreType.DMA((number,)),
            ],
        ),
        input_output_aliases={3 + number + which: which for which in range(number)},
        interpret=interpret,
        name="kv_update",
    )(pages.block, pages.first, pages.last, *new, *in_hbm(planes, interpret))
    return tuple(updated)


def _whole(axes: int, page: Any, *_: Any) -> tuple[Any, ...]:
    return (page, *(0,) * (axes - 1))


def _page(number: int, block: Any, first: Any, last: Any, *parts: Any) -> None:
    """parts: of each plane, what is new [1, Hk, tokens, ...], of which the tokens from first to last - 1 are; the plane
    before; the plane, which is the same memory; a buffer of a block. Then the semaphores of their copies."""
    new, _, planes, buffers = (parts[which * number :][:number] for which in range(4))
    arrived = parts[-1]
    page = pl.program_id(0)
    begin, end, size = first[page], last[page], new[0].shape[2]
    each = tuple(enumerate(zip(new, planes, buffers, strict=True)))

    @pl.when((end > begin) & (end - begin < size))
    def read() -> None:
        copies = [
            pltpu.make_async_copy(plane.at[block[page]], buffer, arrived.at[which])
            for which, (_, plane, buffer) in each
        ]
        for copy in copies:
            copy.start()
        for copy in copies:
            copy.wait()

    @pl.when(end > begin)
    def put() -> None:
        copies = []
        for which, (values, plane, buffer) in each:
            place = jax.lax.broadcasted_iota(jnp.int32, buffer.shape, 1)
            buffer[...] = jnp.where((place >= begin) & (place < end), values[0], buffer[...])
            copies.append(pltpu.make_async_copy(buffer, plane.at[block[page]], arrived.at[which]))
            copies[-1].start()
        for copy in copies:
            copy.wait()
