"""What all groups of ops share: dtypes by name, results in `out`, and the dtypes, sizes and tolerances of tests."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import torch
from torch import Tensor

from tessera.errors import PlatformError

DTYPES = ("float32", "bfloat16", "float16")
"""The dtypes that ops are tested in."""

LARGE_VOCAB = 131_100
"""Entries of a vocabulary half of whose ids need more than 16 bits."""

HIDDEN, WIDE, VOCAB, EXPERTS = 1024, 2816, 32000, 8
"""Sizes of the model at which speed is measured."""

ROUNDED_ONCE: Mapping[str, float] = MappingProxyType({"float16": 2e-3, "bfloat16": 1.6e-2})
"""Tolerances of ops that compute in float32 and round at the end: two units in the last place."""

_SHORT: Mapping[str, str] = MappingProxyType(
    {
        "fp8_e4m3": "float8_e4m3fn",
        "fp8_e5m2": "float8_e5m2",
        "fp8_e4m3fnuz": "float8_e4m3fnuz",
        "fp8_e5m2fnuz": "float8_e5m2fnuz",
    }
)


def torch_dtype(name: str) -> torch.dtype:
    """torch's dtype of a name that a spec or a checkpoint uses, such as "bfloat16" or "fp8_e4m3". Raises PlatformError
    if torch has none of this name."""
    dtype = getattr(torch, _SHORT.get(name, name), None)
    if not isinstance(dtype, torch.dtype):
        raise PlatformError(f"torch has no dtype '{name}'; use a name such as bfloat16 or {', '.join(_SHORT)}.")
    return dtype


def largest(n: int, dtype: str) -> float:
    """A standard deviation near the limit of a dtype, but small enough for a sum of n squares in float32."""
    return min(torch.finfo(torch_dtype(dtype)).max, (torch.finfo(torch.float32).max / n) ** 0.5) / 16


def into(result: Tensor, out: Tensor | None) -> Tensor:
    """The result, copied into `out` if the caller gave one."""
    return result if out is None else out.copy_(result)
