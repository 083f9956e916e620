"""Random weights: of the right shapes, the same for the same seed on every device."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from tessera.ops.tensors import torch_dtype
from tessera.platform.quantization import Part, WeightFormat

ALONE = 1 << 20
"""A tensor of fewer numbers is drawn on its own, on the host."""
PERIOD = 4194301
"""Numbers of 16 bits that all larger tensors share: a prime, so that no two rows of a matrix are the same ones, and so
few that the host draws them in a fiftieth of a second and keeps 8 MiB."""


class Dummy:
    """A loader.checkpoint.WeightSource. A tensor's values depend only on its name and part. Tensors of ALONE numbers or
    more repeat one long draw, each from a place of its own: a copy, which any device makes at the speed of its memory,
    where a draw of each number would take the host minutes for a model of 8 billion. target: of the device that fills
    them; None: the host does."""

    dtype = "bfloat16"
    notes: Sequence[str] = ()
    decodes = False
    form: WeightFormat | None = None

    def __init__(self, seed: int, target: torch.device | None = None) -> None:
        self.seed = seed
        self.target = torch.device("cpu") if target is None else target
        # The long draw on each device that fills tensors: as it is, or as numbers from -1 to 1 in bfloat16.
        self._draws: dict[tuple[torch.device, bool], Tensor] = {}

    def read(self, part: Part) -> Tensor:
        if part.fill is not None:
            return torch.full(part.shape, part.fill, dtype=None if part.dtype is None else torch_dtype(part.dtype))
        kind = torch_dtype(part.dtype or self.dtype)
        if part.whole == (-1,):
            return torch.empty(0, dtype=kind)
        if not kind.is_floating_point and kind not in (torch.int8, torch.int32):
            return torch.zeros(part.shape, dtype=kind)
        return self._alone(part, kind) if math.prod(part.shape) < ALONE else self._repeated(part, kind)

    def differ(self, names: Sequence[str], dtype: str) -> bool:
        """They are as config.json says."""
        return False

    def holds(self, name: str) -> bool:
        """They have every name."""
        return True

    def names(self) -> Iterable[str]:
        return ()

    def release(self) -> None:
        self._draws.clear()

    def _alone(self, part: Part, kind: torch.dtype) -> Tensor:
        generator = torch.Generator().manual_seed(self._seed_of(part))
        if not kind.is_floating_point:  # quantized weights
            limits = torch.iinfo(kind)
            return torch.randint(limits.min, limits.max, part.shape, generator=generator, dtype=kind)
        limit = _largest(part, kind)
        if kind.itemsize == 1:
            return torch.empty(part.shape).uniform_(-limit, limit, generator=generator).to(kind)
        return torch.empty(part.shape, dtype=torch.bfloat16).uniform_(-limit, limit, generator=generator)

    def _repeated(self, part: Part, kind: torch.dtype) -> Tensor:
        # what checkpoints pack is unpacked on the host, whose ops do that
        target = self.target if part.unpacking is None else torch.device("cpu")
        draw = self._draw(target, numbers=kind.is_floating_point)
        start = self._seed_of(part) % PERIOD
        if not kind.is_floating_point:
            return _repeat(draw[: PERIOD - 1].view(kind), start // kind.itemsize, part.shape, 1)
        filled = _repeat(draw, start, part.shape, _largest(part, kind))
        return filled.to(kind) if kind.itemsize == 1 else filled

    def _draw(self, target: torch.device, *, numbers: bool) -> Tensor:
        if (target, numbers) not in self._draws:
            generator = torch.Generator().manual_seed(_seed(str(self.seed)))
            words = torch.empty(PERIOD // 4 + 1, dtype=torch.int64)  # a draw has 64 bits
            words.random_(-(2**63), None, generator=generator)
            bits = words.view(torch.int16)[:PERIOD].to(target)
            self._draws[target, numbers] = bits.to(torch.bfloat16).mul_(2.0**-15) if numbers else bits.clone()
        return self._draws[target, numbers]

    def _seed_of(self, part: Part) -> int:
        return _seed(f"{self.seed} {part.name} {part.rows} {part.columns}")


def _seed(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")


def _largest(part: Part, kind: torch.dtype) -> float:
    """The largest value: of a dtype of one byte, whose scale is another tensor, the largest that it has."""
    return torch.finfo(kind).max if kind.itemsize == 1 else 1.0 / math.sqrt(part.shape[-1])


def _repeat(values: Tensor, start: int, shape: Sequence[int], factor: float) -> Tensor:
    """A tensor of consecutive values from `start`, the first after the last, times factor."""
    filled = values.new_empty(math.prod(shape))
    at = 0
    while at < len(filled):
        number = min(len(values) - start, len(filled) - at)
        torch.mul(values[start : start + number], factor, out=filled[at : at + number])
        at, start = at + number, 0
    return filled.view(tuple(shape))
