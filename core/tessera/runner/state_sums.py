"""How the states of texts that share a launch become one state of each text: at once, or so that no bit of it depends
on the others."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from tessera.arrays import Array, ranges
from tessera.platform.device import Device


def at_once(function: Callable[[Tensor], Tensor], rows: Tensor) -> Tensor:
    """function(rows [n, width]) -> [n, ...]."""
    return function(rows)


def one_by_one(function: Callable[[Tensor], Tensor], rows: Tensor) -> Tensor:
    """The same of each row alone: the order in which a product adds may depend on how many rows it has, and on where
    they begin in memory."""
    return torch.cat([function(row.clone()) for row in rows.split(1)]) if len(rows) else function(rows)


def sums(states: Tensor, owners: Array, weights: Tensor, number: int, earlier: Tensor | None, device: Device) -> Tensor:
    """states [T, width], owners, weights [T], earlier [number, width] -> [number, width]: the weighted sum of each
    text's states, and what earlier launches made of them. A product, because it adds in the same order each time."""
    of_each = torch.arange(number, device=states.device)[:, None] == device.to_device(owners.astype(np.int64))[None, :]
    summed = (of_each * weights[None, :]) @ states
    return summed if earlier is None else summed + earlier


def sums_in_order(
    states: Tensor, owners: Array, weights: Tensor, number: int, earlier: Tensor | None, device: Device
) -> Tensor:
    """The same, each text's states added one after the other, from its first one on. owners: ascending."""
    weighted = torch.cat([states * weights[:, None], states.new_zeros(1, states.shape[1])])
    counts = np.bincount(owners, minlength=number)
    # [states of the longest, number]: of each text its next state, or the row of zeros if it has no more.
    following = np.full((counts.max(), number), len(owners))
    following[ranges(np.zeros_like(counts), counts), owners] = np.arange(len(owners))
    summed = states.new_zeros(number, states.shape[1]) if earlier is None else earlier
    for at in device.to_device(following):
        summed = summed + weighted[at]
    return summed


def largest(states: Tensor, owners: Tensor, number: int) -> Tensor:
    """states [T, width], owners [T] -> [number, width]: the largest element of each text's states."""
    least = states.new_full((number, states.shape[1]), -torch.inf)
    return least.scatter_reduce_(0, owners[:, None].expand_as(states), states, "amax")
