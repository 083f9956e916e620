"""Writes the keys and values of a launch into their blocks.

A token is a row of a tile, and memory is copied in tiles. So a block is read, the rows of its new tokens are put into
it, and it is written back; a block that is all new is only written.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array as Jax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from tessera_tpu.plan import Pages


def write(planes: tuple[Jax, Jax], k: Jax, v: Jax, pages: Pages, interpret: Any = False) -> tuple[Jax, Jax]:
    """k, v [T, Hk, D] into the planes [blocks, Hk, tokens, D], which are updated in place."""
    _, of_heads, size, dim = planes[0].shape
    at = jnp.minimum(pages.token, len(k) - 1)
    new = [values[at].astype(planes[0].dtype).transpose(0, 2, 1, 3) for values in (k, v)]  # [M, Hk, tokens, D]
    one = pl.BlockSpec((1, of_heads, size, dim), lambda page, *_: (page, 0, 0, 0))
    kept = pl.BlockSpec(memory_space=pl.ANY)
    buffer = pltpu.VMEM((2, of_heads, size, dim), planes[0].dtype)
    updated: tuple[Jax, Jax] = pl.pallas_call(
        _page,
        out_shape=[jax.ShapeDtypeStruct(plane.shape, plane.dtype) for plane in planes],
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=3,
            grid=(len(pages.block),),
            in_specs=[one, one, kept, kept],
            out_specs=[kept, kept],
            scratch_shapes=[buffer, pltpu.SemaphoreType.DMA((2,))],
        ),
        input_output_aliases={5: 0, 6: 1},
        interpret=interpret,
        name="kv_update",
    )(pages.block, pages.first, pages.last, *new, *planes)
    return updated


def _page(
    block: Any, first: Any, last: Any, new_k: Any, new_v: Any, old_keys: Any, old_values: Any, keys: Any, values: Any,
    buffer: Any, arrived: Any,
) -> None:  # fmt: skip
    """new_k, new_v [1, Hk, tokens, D], of which the rows from first to last - 1 are new. old_keys and old_values are
    keys and values."""
    page = pl.program_id(0)
    begin, end, size = first[page], last[page], new_k.shape[2]
    pairs = tuple(enumerate(((new_k, keys), (new_v, values))))

    @pl.when((end > begin) & (end - begin < size))
    def read() -> None:
        copies = [
            pltpu.make_async_copy(plane.at[block[page]], buffer.at[which], arrived.at[which])
            for which, (_, plane) in pairs
        ]
        for copy in copies:
            copy.start()
        for copy in copies:
            copy.wait()

    @pl.when(end > begin)
    def put() -> None:
        place = jax.lax.broadcasted_iota(jnp.int32, new_k.shape[1:], 1)
        copies = []
        for which, (new, plane) in pairs:
            buffer[which] = jnp.where((place >= begin) & (place < end), new[0], buffer[which])
            copies.append(pltpu.make_async_copy(buffer.at[which], plane.at[block[page]], arrived.at[which]))
            copies[-1].start()
        for copy in copies:
            copy.wait()
