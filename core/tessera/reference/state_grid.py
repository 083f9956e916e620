"""The rows of a launch as state mixers compute them: laid out in grids, in each of which a mixer computes all rows at
once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tessera.arrays import Array
from tessera.platform.device import Device
from tessera.platform.launch import Launch
from tessera.reference.attention import RowGrid


@dataclass(frozen=True)
class StateGrid:
    """Some rows of a launch, laid out by row, and their slots."""

    token: Tensor  # [R, W] int64: the token at a place in a row
    valid: Tensor  # [R, W]: whether there is one
    slot: Tensor  # [R]: of the row's state
    length: Tensor  # [R]: tokens of a row
    fresh: Tensor  # [R]: whether a row is at its beginning, so that its slot still holds another request's state

    def laid(self, x: Any) -> Any:
        """x [T, ...] -> [R, W, ...] float32, zeros where there is no token. A tuple of tensors becomes one of such."""
        if isinstance(x, tuple):
            return type(x)(*map(self.laid, x))
        return torch.where(self.valid[..., None], x[self.token].float(), 0.0)


@dataclass(frozen=True)
class StatePlan:
    """The rows of a launch in one grid, or in several, of rows of about the same length."""

    grids: tuple[StateGrid, ...]
    place: Tensor  # [T] int64: of each token, among the places of all grids behind one another

    @classmethod
    def in_one_grid(cls, launch: Launch, slot: Tensor) -> StatePlan:
        """All shapes are those of the launch's key."""
        rows = RowGrid.from_launch(launch)
        fresh = launch.seq_lens == launch.query_lens
        grid = StateGrid(rows.token, rows.valid, slot, launch.query_lens, fresh)
        return cls((grid,), rows.row * launch.key.width + rows.place)

    @classmethod
    def by_length(cls, launch: Launch, slot: Tensor, device: Device) -> StatePlan:
        """A grid of the rows of one token, and others of rows of which none is twice as long as another, so that fewer
        than half of the places are empty. In one grid, each row that decodes would take as many places as a long
        prompt."""
        lengths = launch.query_lens_host
        classes = np.ceil(np.log2(np.maximum(lengths, 1)))
        order = np.argsort(classes, kind="stable")
        ends = np.flatnonzero(np.diff(classes[order], append=np.inf)) + 1
        on_device = device.to_device(order.astype(np.int32)).long()
        first_places, grids, first, before = np.zeros_like(lengths), [], 0, 0
        for last in ends.tolist():
            rows = order[first:last]
            width = max(int(lengths[rows].max()), 1)
            first_places[rows] = before + width * np.arange(len(rows))
            grids.append(_grid(launch, slot, on_device[first:last], width))
            first, before = last, before + width * len(rows)
        return cls(tuple(grids), device.to_device(_places(launch, first_places)).long())


def sparse(launch: Launch) -> bool:
    """Whether more than half of the places of a launch in one grid would be empty."""
    return launch.key.width > 1 and launch.key.rows * launch.key.width > 2 * launch.num_tokens


def _grid(launch: Launch, slot: Tensor, rows: Tensor, width: int) -> StateGrid:
    start, length = launch.query_start_loc[rows], launch.query_lens[rows]
    place = torch.arange(width, device=rows.device)
    valid = place < length[:, None]
    token = torch.where(valid, start[:, None] + place, 0).long()
    return StateGrid(token, valid, slot[rows], length, launch.seq_lens[rows] == length)


def _places(launch: Launch, first: Array) -> Array:
    """[T] int32, the place of each token, of those of its row's first [R]; 0 for padding."""
    lengths = launch.query_lens_host
    before = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)  # in the same row
    places = np.zeros(launch.key.tokens, np.int32)
    places[np.repeat(launch.query_start_loc_host[:-1], lengths) + before] = np.repeat(first, lengths) + before
    return places
