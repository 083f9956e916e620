"""A causal depthwise convolution over the last few tokens, as state mixers have it. Its state is the last inputs."""

from __future__ import annotations

import torch
from torch import Tensor

from tessera.reference.state_grid import StateGrid


def causal_convolution(inputs: Tensor, weight: Tensor, state: Tensor, grid: StateGrid) -> Tensor:
    """inputs [R, W, channels] float32, weight [channels, kernel], state [slots, channels, kernel - 1] -> [R, W,
    channels]. The rows' slots then hold their last inputs."""
    sequence = behind_the_last(inputs, state, grid)
    weight, width = weight.float(), inputs.shape[1]
    taps = (sequence[:, tap : tap + width] * weight[:, tap] for tap in range(weight.shape[1]))
    return sum(taps, torch.zeros_like(inputs))


def behind_the_last(inputs: Tensor, state: Tensor, grid: StateGrid) -> Tensor:
    """inputs [R, W, channels] float32, state [slots, channels, n] -> [R, n + W, channels]: the rows' last inputs, of
    which their slots then hold the new ones, and the inputs."""
    before = torch.where(grid.fresh[:, None, None], 0.0, state[grid.slot].float())
    sequence = torch.cat([before.transpose(1, 2), inputs], dim=1)
    state.index_put_((grid.slot,), _last(sequence, grid.length, state.shape[2]).to(state.dtype))
    return sequence


def _last(sequence: Tensor, length: Tensor, number: int) -> Tensor:
    """[R, channels, number]: the inputs behind which a row of `length` new ones goes on."""
    place = length[:, None] + torch.arange(number, device=sequence.device)
    last = sequence.gather(1, place[..., None].long().expand(-1, -1, sequence.shape[-1]))
    return last.transpose(1, 2)
