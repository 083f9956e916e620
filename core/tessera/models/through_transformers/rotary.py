"""Rotary embeddings in a tower of transformers', computed by this engine's op. The code of its attention calls a
function of its module's for them, which stays as it is: a layer whose embedding is bound has a copy of the code that
calls the op instead."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor, nn

from tessera.layers.build import Build
from tessera.ops import RotarySpec
from tessera.ops.rotary import rotary

NAME = "apply_rotary_pos_emb_vision"
"""What transformers calls it for patches of images: queries and keys [T, H, D], cosines and sines [T, D]."""

Rotates = Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


class BoundRotary:
    """Called in place of transformers' function, theirs. style: how it pairs the elements of a head."""

    def __init__(self, build: Build, theirs: Rotates, head_dim: int, style: str) -> None:
        self.theirs, self.style, self.head_dim = theirs, style, head_dim
        self.call = build.ops.bind("rotary", RotarySpec(head_dim, head_dim, style))
        # Whether both elements of a pair have the same angle, as the op's have; known from the first call on, since it
        # is a matter of the model's code.
        self._paired: bool | None = None

    def __call__(self, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        if self._paired is None:
            self._paired = (
                q.dim() == 3 and cos.shape == (len(q), self.head_dim) and self._pairs(cos) and self._pairs(sin)
            )
        if not self._paired:
            return self.theirs(q, k, cos, sin)
        table = torch.cat([self._halves(part)[0] for part in (cos, sin)], dim=-1).float()
        q, k = q.contiguous(), k.contiguous()  # the op writes in place
        self.call(q, k, torch.arange(len(q), dtype=torch.int32, device=q.device), table)
        return q, k

    def _halves(self, angles: Tensor) -> tuple[Tensor, Tensor]:
        """What the first and the second element of each pair has."""
        if self.style == "half":
            first, second = angles.chunk(2, dim=-1)
            return first, second
        return angles[..., 0::2], angles[..., 1::2]

    def _pairs(self, angles: Tensor) -> bool:
        return torch.equal(*self._halves(angles))


def bind_rotary(build: Build, model: nn.Module) -> None:
    """Has the layers that rotate patches' queries and keys do it by the bound op."""
    for module in model.modules():
        forward, head_dim = type(module).forward, getattr(module, "head_dim", None)
        if isinstance(forward, FunctionType) and NAME in forward.__code__.co_names and isinstance(head_dim, int):
            theirs = forward.__globals__[NAME]
            style = rotary_style(theirs, head_dim)
            if style is not None:
                bound = BoundRotary(build, theirs, head_dim, style)
                module.forward = MethodType(_calling(forward, bound), module)


def rotary_style(theirs: Rotates, head_dim: int) -> str | None:
    """RotarySpec.style of what a function computes; None for something else."""
    q, k = torch.linspace(-1.0, 2.0, 9 * head_dim).view(3, 3, head_dim).split((2, 1), dim=1)
    angles = torch.linspace(-2.0, 3.0, 3 * (head_dim // 2)).view(3, -1)
    table = torch.cat((angles.cos(), angles.sin()), dim=-1)
    for style, whole in (("half", torch.cat((angles, angles), -1)), ("pairs", angles.repeat_interleave(2, -1))):
        own = q.clone(), k.clone()
        rotary(RotarySpec(head_dim, head_dim, style), *own, torch.arange(3), table)
        try:
            if all(map(torch.allclose, theirs(q, k, whole.cos(), whole.sin()), own)):
                return style
        except Exception:  # noqa: BLE001 - transformers' code may raise anything, and is served as it is then
            return None
    return None


def _calling(forward: FunctionType, bound: BoundRotary) -> FunctionType:
    """A copy of a function that calls bound."""
    names: dict[str, Any] = {**forward.__globals__, NAME: bound}
    copied = FunctionType(forward.__code__, names, forward.__name__, forward.__defaults__, forward.__closure__)
    copied.__kwdefaults__ = forward.__kwdefaults__
    return copied
