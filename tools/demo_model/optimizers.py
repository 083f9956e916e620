"""The two optimizers: Muon for matrices (Jordan et al., 2024), Adam for the embedding and the norms."""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import Executor

import torch
from torch import Tensor

# A quintic polynomial that moves singular values towards one.
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
ITERATIONS = 5


class Adam:
    """Adam without weight decay."""

    def __init__(self, parameters: Sequence[Tensor], betas: tuple[float, float] = (0.9, 0.98)) -> None:
        self.parameters = parameters
        self.means = [torch.zeros_like(parameter) for parameter in parameters]
        self.squares = [torch.zeros_like(parameter) for parameter in parameters]
        self.betas = betas

    def state(self) -> list[Tensor]:
        """The tensors to save for resuming."""
        return [*self.means, *self.squares]

    @torch.no_grad()
    def step(self, rate: float, count: int) -> None:
        """Runs step number `count`, starting from 1."""
        first, second = self.betas
        for parameter, mean, square in zip(self.parameters, self.means, self.squares, strict=True):
            assert parameter.grad is not None
            mean.lerp_(parameter.grad, 1 - first)
            square.lerp_(parameter.grad.square(), 1 - second)
            deviation = (square / (1 - second**count)).sqrt_().add_(1e-8)
            parameter.addcdiv_(mean, deviation, value=-rate / (1 - first**count))


class Muon:
    """Momentum with an orthogonalized update, in groups of the same shape, so that a step is a few batched products."""

    def __init__(self, matrices: Sequence[Tensor], momentum: float = 0.95, decay: float = 0.2) -> None:
        shapes = sorted({tuple(matrix.shape) for matrix in matrices}, key=math.prod, reverse=True)
        self.groups = [[matrix for matrix in matrices if tuple(matrix.shape) == shape] for shape in shapes]
        self.velocities = [torch.zeros(len(group), *group[0].shape) for group in self.groups]
        self.momentum = momentum
        self.decay = decay

    def state(self) -> list[Tensor]:
        """The tensors to save for resuming."""
        return self.velocities

    def step(self, rate: float, pool: Executor) -> None:
        """Runs one step, one group per task. 0.2 * `rate` is roughly the root mean square of an entry's change."""
        list(pool.map(self._update, self.groups, self.velocities, [rate] * len(self.groups)))

    @torch.no_grad()
    def _update(self, group: list[Tensor], velocity: Tensor, rate: float) -> None:
        gradient = torch.stack([matrix.grad for matrix in group if matrix.grad is not None])
        velocity.lerp_(gradient, 1 - self.momentum)
        update = orthogonal(gradient.lerp(velocity, self.momentum))
        scale = rate * 0.2 * max(update.shape[-2:]) ** 0.5
        for matrix, part in zip(group, update, strict=True):
            matrix.mul_(1 - rate * self.decay).add_(part, alpha=-scale)


def orthogonal(x: Tensor) -> Tensor:
    """Approximately the nearest (semi-)orthogonal matrices to x [count, rows, columns], by Newton-Schulz in
    bfloat16."""
    a, b, c = COEFFICIENTS
    wide = x.shape[-2] <= x.shape[-1]
    y = (x if wide else x.mT).bfloat16()
    y = y / (torch.linalg.vector_norm(y, dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(ITERATIONS):
        square = y @ y.mT
        y = a * y + (b * square + c * square @ square) @ y
    return (y if wide else y.mT).float()
