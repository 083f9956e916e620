"""Attention by an op over dense keys and values under a mask, as every vendor's library has one."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tessera.platform.attention import (
    AttentionBackend,
    AttentionGroup,
    CacheConstraints,
    Caches,
    FullAttentionSpec,
    HeadsLayer,
    LayerSpec,
    Mixer,
)
from tessera.platform.device import Device, Reason, Tensor
from tessera.platform.launch import Buffers, Launch
from tessera.platform.ops import BoundOps


@dataclass(frozen=True)
class Masks:
    """Of R rows of W places, with K keys each. mask [R, 1, W, K] act: 0 where a query sees a key, otherwise the least
    number. unread [R, K, 1, 1]: keys that no query of a row sees. token [R, W]: the token at each place; back [T]: the
    place of each token; None where the places are the tokens, in order."""

    mask: Tensor
    unread: Tensor
    token: Tensor | None = None
    back: Tensor | None = None


@dataclass
class MaskedPlan:
    """A launch's rows as rectangles, and their masks."""

    # slot_mapping of the launch
    slots: Tensor
    # block_tables of the launch
    tables: Tensor
    # query_start_loc of the launch
    starts: Tensor
    # query_lens of the launch
    counts: Tensor
    # seq_lens of the launch
    lengths: Tensor
    # rows, and places of a row
    places: tuple[int, int]
    # whether the tokens are the places
    in_order: bool
    # the layer that makes the masks, of which the others of its group take them; None if the plan has them
    first: int | None
    # None until the first layer has made them
    masks: Masks | None = None


class MaskedAttention(AttentionBackend):
    """Gathers the blocks of each row and attends under a mask that says what each query sees. So all shapes are those
    of the launch's key, and nothing is read on the host. The first layer of a group makes the mask, as part of what is
    captured or compiled: a plan launches nothing. No soft caps and no sinks. A subclass has a name, and says how to
    attend."""

    def __init__(self, torch: Any, blocks: tuple[int, ...]) -> None:
        """torch: the library. blocks: tokens of a block, the preferred number first, then those that it may also
        have."""
        self.torch = torch
        self.blocks = blocks

    @abstractmethod
    def attend_masked(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float) -> Tensor:
        """q [R, H, W, D]; k, v [R, Hk, K, D]; mask [R, 1, W, K], added to the scores -> [R, H, W, D]."""

    def supports(self, spec: LayerSpec) -> Reason | None:
        if spec.kind != "attention" or not isinstance(spec.cache, FullAttentionSpec):
            return f"no attention over {spec.kind}"
        if spec.sinks or spec.softcap is not None:
            return "no sinks and no soft cap"
        return None if spec.cache.dtype == spec.dtype else f"keys and values are kept in {spec.dtype} alone"

    def constraints(self, spec: LayerSpec) -> CacheConstraints:
        return CacheConstraints(self.blocks, dense_planes=True)

    def bind(self, spec: LayerSpec, weights: Mapping[str, Tensor], ops: BoundOps, device: Device) -> Mixer:
        return MaskedLayer(spec, weights, ops, self)

    def plan(self, launch: Launch, group: AttentionGroup, buffers: Buffers | None) -> MaskedPlan:
        return MaskedPlan(
            launch.slot_mapping[group.number],
            launch.block_tables[group.number],
            launch.query_start_loc,
            launch.query_lens,
            launch.seq_lens,
            (launch.key.rows, launch.key.width),
            in_order(launch),
            first=group.layers[0],
        )

    def masks(self, plan: MaskedPlan, spec: LayerSpec, keys: int) -> Masks:
        """keys: K."""
        torch, at = self.torch, plan.tables.device
        width = torch.arange(plan.places[1], device=at)
        position = (plan.lengths - plan.counts)[:, None] + width  # [R, W]
        key = torch.arange(keys, device=at)
        seen = (key <= position[:, :, None]) & (key < plan.lengths[:, None, None])  # [R, W, K]
        if spec.window is not None:
            seen = seen & (key > position[:, :, None] - spec.window)
        kind = getattr(torch, spec.dtype)
        mask = torch.zeros(seen.shape, dtype=kind, device=at).masked_fill(~seen, torch.finfo(kind).min)
        unread = ~seen.any(1)[:, :, None, None]
        return Masks(mask[:, None], unread, *self._places(plan, width))

    def _places(self, plan: MaskedPlan, width: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """Masks.token and Masks.back."""
        if plan.in_order:
            return None, None
        torch, first, count = self.torch, plan.starts[:-1, None], plan.counts[:, None]
        token = torch.where(width < count, first + width, 0)
        before = torch.arange(len(plan.slots), device=width.device) - first  # [R, T]
        row = ((before >= 0) & (before < count)).to(torch.int32).argmax(0)
        place = before.gather(0, row[None])[0].clamp(0, plan.places[1] - 1)
        return token, row * plan.places[1] + place

    def store(self, cache: Tensor, slots: Tensor, values: Tensor) -> None:
        """Writes values [T, Hk, D] into slots [T] of a cache [blocks, tokens, Hk, D]."""
        cache.flatten(0, 1).index_put_((slots,), values)


class SdpaAttention(MaskedAttention):
    """By torch's scaled dot product, of which a device's compiler makes its own kernels."""

    name = "sdpa"

    def attend_masked(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float) -> Tensor:
        attend = self.torch.nn.functional.scaled_dot_product_attention
        mixed: Tensor = attend(q, k, v, mask, scale=scale, enable_gqa=True)
        return mixed


def in_order(launch: Launch) -> bool:
    """Whether the tokens of a launch are the places of its rows, all of them, in order."""
    key, rows = launch.key, launch.num_rows
    starts = np.arange(rows) * key.width
    return key.tokens == key.rows * key.width and np.array_equal(launch.query_start_loc_host[:rows], starts)


class MaskedLayer(HeadsLayer):
    """backend: whose layer it is."""

    def __init__(self, spec: LayerSpec, weights: Mapping[str, Tensor], ops: BoundOps, backend: MaskedAttention) -> None:
        super().__init__(spec, weights, ops)
        self.backend = backend

    def write(self, k: Tensor, v: Tensor, caches: Caches, plan: MaskedPlan) -> None:
        for cache, values in zip(caches[self.spec.layer], (k, v), strict=True):
            self.backend.store(cache, plan.slots, values)

    def attend(self, q: Tensor, caches: Caches, plan: MaskedPlan, out: Tensor | None = None, lse: bool = False) -> Any:
        assert not lse, "not among this backend's features"
        found = caches[self.spec.layer]
        if self.spec.layer == plan.first:
            plan.masks = self.backend.masks(plan, self.spec, plan.tables.shape[1] * found[0].shape[1])
        masks = plan.masks
        assert masks is not None, "the first layer of the group comes first"
        keys, values = (_of_rows(cache, plan.tables, masks.unread) for cache in found)
        places = q.unflatten(0, plan.places) if masks.token is None else q[masks.token]  # [R, W, H, D]
        mixed = self.backend.attend_masked(places.transpose(1, 2), keys, values, masks.mask, self.spec.scale)
        tokens = mixed.transpose(1, 2).flatten(0, 1)
        result = tokens if masks.back is None else tokens[masks.back]
        return result if out is None else out.copy_(result)


def _of_rows(cache: Tensor, tables: Tensor, unread: Tensor) -> Tensor:
    """[R, Hk, K, D], with zeros for keys that are not read, since what is there may be anything, NaN included."""
    blocks = cache.index_select(0, tables.flatten()).unflatten(0, tables.shape)
    gathered: Tensor = blocks.flatten(1, 2).masked_fill(unread, 0.0).transpose(1, 2)
    return gathered
