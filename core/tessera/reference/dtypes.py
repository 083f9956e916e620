"""Names of dtypes to torch's."""

from __future__ import annotations

import torch


def torch_dtype(name: str) -> torch.dtype:
    """torch's dtype of a name that a spec or a checkpoint uses, such as "bfloat16"."""
    dtype = getattr(torch, name)
    assert isinstance(dtype, torch.dtype), name
    return dtype
