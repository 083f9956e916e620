"""Weights rounded one input after the other, each of which makes up for the errors of those before it.

Frantar et al., GPTQ (https://arxiv.org/abs/2210.17323): of the inputs that a layer sees in calibration, sum(x x^T)
says how an error in one weight of a row changes the results, and so by how much the weights of inputs that are not
rounded yet are moved. Inputs are rounded in the order of how much they matter ("act-order"), with scales chosen
before, so that groups stay those of neighbours.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from tessera.quantization.compressed_weights import CompressedForm, compressed_codes, integer_scales

_DAMPING = 0.01
"""What is added to the diagonal, as a share of its mean: products of few texts are not all of full rank."""
_AT_A_TIME = 128
"""Inputs whose errors are moved to the inputs behind them in one product."""


class InputOrder(NamedTuple):
    """Of the inputs of a layer, or of several that have the same."""

    # [k] int64: those that matter most first
    order: Tensor
    # [k, k] float32: the upper Cholesky factor of the inverse of their moments, in this order
    factor: Tensor


def calibrated(weight: Tensor, inputs: InputOrder, form: CompressedForm) -> dict[str, Tensor]:
    """weight [n, k] of floats, which must fit the form, one of integers in groups. Returns what is stored instead, by
    the end of its name."""
    wide, (order, factor) = weight.float(), inputs
    scale, zero = integer_scales(weight, form)
    of_input = torch.arange(wide.shape[1]) // form.group
    by_input, points = scale.float()[:, of_input[order]], zero.float()[:, of_input[order]]
    codes = torch.empty_like(wide)
    codes[:, order] = _rounded(wide[:, order], factor, by_input, points, form)
    return compressed_codes(codes.to(torch.int8), scale, zero, weight.shape, form)


def ordered(moments: Tensor) -> InputOrder:
    """moments [k, k] float32: the sum of the outer products of the inputs."""
    diagonal = moments.diagonal()
    order = diagonal.argsort(descending=True)
    sorted_moments = moments[order][:, order].double()
    damped = sorted_moments + torch.eye(len(order), dtype=torch.float64) * max(float(diagonal.mean()) * _DAMPING, 1e-12)
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(damped))
    return InputOrder(order, torch.linalg.cholesky(inverse, upper=True).float())


def _rounded(weight: Tensor, factor: Tensor, scale: Tensor, zero: Tensor, form: CompressedForm) -> Tensor:
    """Codes [n, k], float32. scale, zero [n, k]: of each weight."""
    low, high = form.limits
    codes, weight = torch.empty_like(weight), weight.clone()
    for start in range(0, weight.shape[1], _AT_A_TIME):
        end = min(start + _AT_A_TIME, weight.shape[1])
        errors = torch.empty(len(weight), end - start)
        for place in range(start, end):
            step = torch.where(scale[:, place] == 0, 1.0, scale[:, place])
            codes[:, place] = (weight[:, place] / step + zero[:, place]).round().clamp(low, high)
            back = (codes[:, place] - zero[:, place]) * scale[:, place]
            errors[:, place - start] = error = (weight[:, place] - back) / factor[place, place]
            weight[:, place:end] -= error[:, None] * factor[place, place:end]
        weight[:, end:] -= errors @ factor[start:end, end:]
    return codes
