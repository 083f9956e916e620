"""What transformers' processors of videos, and of images where they are written for it, call of torchvision, as few
functions of torch.

torchvision must be of the very build of torch beside it, and there is none for many devices' builds. Its functions are
thin: these give the same numbers on a CPU. They stand in its place in a media worker alone, also where it is
installed, so that an answer does not depend on that.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Sequence
from enum import Enum
from importlib.machinery import ModuleSpec
from types import MappingProxyType, ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import interpolate
from torch.nn.functional import pad as torch_pad

_VERSION = "0.28.0"
"""Whose functions these are."""


class InterpolationMode(Enum):
    """By torch's names."""

    NEAREST = "nearest"
    NEAREST_EXACT = "nearest-exact"
    BILINEAR = "bilinear"
    BICUBIC = "bicubic"
    BOX = "box"
    HAMMING = "hamming"
    LANCZOS = "lanczos"


_BY_PILLOW = MappingProxyType(
    {
        0: InterpolationMode.NEAREST,
        1: InterpolationMode.LANCZOS,
        2: InterpolationMode.BILINEAR,
        3: InterpolationMode.BICUBIC,
        4: InterpolationMode.BOX,
        5: InterpolationMode.HAMMING,
    }
)
"""By Pillow's numbers, which some processors pass on."""
_SMOOTH = (InterpolationMode.BILINEAR, InterpolationMode.BICUBIC, InterpolationMode.LANCZOS)


def resize(
    frames: Tensor,
    size: Sequence[int],
    interpolation: InterpolationMode | int = InterpolationMode.BILINEAR,
    antialias: bool = True,
) -> Tensor:
    """[.., channels, height, width] of uint8 or floats -> [.., channels, *size]. Bytes are interpolated as bytes, if
    bilinearly only on processors for which torch has fast code for it."""
    *outer, channels, height, width = frames.shape
    if (height, width) == tuple(size):
        return frames
    mode = interpolation if isinstance(interpolation, InterpolationMode) else _BY_PILLOW[interpolation]
    smooth = mode in _SMOOTH
    as_bytes = not smooth or mode is not InterpolationMode.BILINEAR or _fast()
    cast = not frames.is_floating_point() and not as_bytes
    flat = frames.reshape(-1, channels, height, width)
    resized = interpolate(
        flat.float() if cast else flat,
        size=list(size),
        mode=mode.value,
        align_corners=False if smooth else None,
        antialias=antialias and smooth,
    )
    if cast:
        resized = resized.round_().to(frames.dtype)
    return resized.reshape(*outer, channels, *size)


def _fast() -> bool:
    return torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512") or platform.machine() in ("aarch64", "arm64")


def normalize(frames: Tensor, mean: Any, std: Any, inplace: bool = False) -> Tensor:
    """[.., channels, height, width] float32. mean, std: of each channel."""
    shift, scale = (torch.as_tensor(value, dtype=frames.dtype).reshape(-1, 1, 1) for value in (mean, std))
    return (frames.sub_(shift) if inplace else frames.sub(shift)).div_(scale)


def pad(
    frames: Tensor, padding: Sequence[int], fill: float | Sequence[float] = 0, padding_mode: str = "constant"
) -> Tensor:
    """padding: left, top, right, bottom. fill: of all channels, or of each."""
    left, top, right, bottom = padding
    fills = fill if isinstance(fill, Sequence) else [fill]
    parts = frames.chunk(len(fills), dim=-3)
    padded = [
        torch_pad(part, [left, right, top, bottom], mode=padding_mode, value=float(own))
        for part, own in zip(parts, fills, strict=True)
    ]
    return torch.cat(padded, dim=-3)


def crop(frames: Tensor, row: int, column: int, height: int, width: int) -> Tensor:
    """Within the frames."""
    return frames[..., row : row + height, column : column + width]


def grayscale_to_rgb(frames: Tensor) -> Tensor:
    """[.., 1 or 3, height, width] -> [.., 3, height, width]"""
    return frames if frames.shape[-3] >= 3 else frames.expand(*frames.shape[:-3], 3, *frames.shape[-2:])


def stand_in() -> None:
    """Puts these functions where transformers looks for torchvision's, before it is imported."""
    functions: dict[str, Any] = {
        "resize": resize,
        "normalize": normalize,
        "pad": pad,
        "crop": crop,
        "grayscale_to_rgb": grayscale_to_rgb,
        "InterpolationMode": InterpolationMode,
    }
    names = ("", ".io", ".transforms", ".transforms.functional", ".transforms.v2", ".transforms.v2.functional")
    for name in names:
        module = ModuleType(f"torchvision{name}")
        module.__spec__ = ModuleSpec(module.__name__, None, is_package=True)
        module.__path__ = []
        module.__dict__["__version__"] = _VERSION
        sys.modules[module.__name__] = module
        owner, _, key = module.__name__.rpartition(".")
        if owner:
            setattr(sys.modules[owner], key, module)
    sys.modules["torchvision.transforms"].__dict__["InterpolationMode"] = InterpolationMode
    sys.modules["torchvision.transforms.functional"].__dict__["pil_to_tensor"] = None
    sys.modules["torchvision.transforms.v2.functional"].__dict__.update(functions)
