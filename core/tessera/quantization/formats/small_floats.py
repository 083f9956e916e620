"""Floats of 4 bits (E2M1) and scales that are powers of two (E8M0), as the OCP Microscaling Formats (MX) specification
1.0 defines them."""

from __future__ import annotations

from tessera.errors import ModelError, printable
from tessera.platform.device import Tensor

E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
"""The numbers that the codes stand for."""
_NAN, _SUBNORMAL = 255, 1 << 22  # a code of E8M0; and 2^-127, the number of code 0, in the bits of a float32


def nibbles(stored: Tensor) -> Tensor:
    """uint8 [..., bytes] -> the codes of 4 bits, int64 [..., 2 * bytes]: the first in the low half."""
    import torch

    return torch.stack((stored & 15, stored >> 4), dim=-1).flatten(-2).long()


def fp4(stored: Tensor) -> Tensor:
    """uint8 [..., bytes] -> float32 [..., 2 * bytes]"""
    import torch

    return torch.tensor(E2M1, device=stored.device)[nibbles(stored)]


def powers(stored: Tensor, name: str) -> Tensor:
    """uint8 -> float32. name: of the tensor, for messages. Raises ModelError for a code that stands for no number."""
    import torch

    refuse_nan(stored, name)
    bits = stored.to(torch.int32)
    return torch.where(bits == 0, _SUBNORMAL, bits << 23).view(torch.float32)


def refuse_nan(stored: Tensor, name: str) -> None:
    """stored: uint8, codes of powers of two. Raises ModelError as powers() does."""
    if not stored.is_meta and bool((stored == _NAN).any()):
        raise ModelError(f"'{printable(name)}' has scales that are not numbers; use another copy.")
