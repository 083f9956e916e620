"""Attention by torch's scaled dot product under a mask, over blocks of whole sticks: the 128 bytes that the device's
memory is read in."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from tessera.platform import (
    Array,
    AttentionGroup,
    Buffers,
    Launch,
    LayerSpec,
    MaskedPlan,
    Masks,
    Reason,
    SdpaAttention,
)

STICK = 64
"""Numbers in float16 of a stick. Heads and blocks have a multiple."""


class StickAttention(SdpaAttention):
    """The mask is made on the host: the device has no eager casts and no comparisons of integers, and makes no numbers
    in a row, so that a mask of its own would come from the host as well, in pieces."""

    def supports(self, spec: LayerSpec) -> Reason | None:
        if spec.dtype != "float16":
            return "float16 alone"
        return f"heads of a multiple of {STICK}" if spec.head_dim % STICK else super().supports(spec)

    def plan(self, launch: Launch, group: AttentionGroup, buffers: Buffers | None) -> MaskedPlan:
        plan = super().plan(launch, group, buffers)
        size = launch.block_sizes[group.number]
        unseen = _unseen(launch, plan.tables.shape[1] * size, group.spec.window)
        mask = np.where(unseen, np.finfo(np.float16).min, np.float16(0))[:, None]
        token, back = (None, None) if plan.in_order else _places(launch)
        unread = np.logical_and.reduce(unseen, axis=1)[:, :, None, None]
        parts = {"mask": mask, "unread": unread, "token": token, "back": back}
        plan.first, plan.masks = None, Masks(**{name: _put(part, name, group, buffers) for name, part in parts.items()})
        return plan

    def store(self, cache: Tensor, slots: Tensor, values: Tensor) -> None:
        """By the only indexed write that the device's compiler has."""
        cache.flatten(0, 1).index_copy_(0, slots, values)


def _unseen(launch: Launch, keys: int, window: int | None) -> Array:
    """[R, W, K]: whether a query does not see a key. Queries behind the end of their row see what the last one does not
    need either."""
    length, width = launch.seq_lens_host[:, None, None], np.arange(launch.key.width)[None, :, None]
    position = length - launch.query_lens_host[:, None, None] + width
    key = np.arange(keys)[None, None, :]
    unseen: Array = (key > position) | (key >= length)
    return unseen if window is None else unseen | (key <= position - window)


def _places(launch: Launch) -> tuple[Array, Array]:
    """Masks.token and Masks.back."""
    first, count, width = launch.query_start_loc_host[:-1], launch.query_lens_host, launch.key.width
    within = np.arange(width)
    token = np.where(within < count[:, None], first[:, None] + within, 0)
    back = np.zeros(launch.key.tokens, np.int64)
    for row, (start, number) in enumerate(zip(first.tolist(), count.tolist(), strict=True)):
        back[start : start + number] = row * width + within[:number]
    return token, back


def _put(values: Array | None, name: str, group: AttentionGroup, buffers: Buffers | None) -> Tensor | None:
    """In a buffer, where what is compiled reads it; on the device otherwise."""
    if values is None:
        return None
    dense = np.ascontiguousarray(values)
    if buffers is None:
        return group.device.to_device(dense)
    return buffers.put(f"{group.name}_{name}", dense, dense.dtype.name)
