"""Numbers one by one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tessera.gguf.blocks.bits import Bytes, Floats


def number(dtype: str) -> Callable[[Bytes], NDArray[Any]]:
    """dtype: as numpy writes it."""
    return lambda blocks: blocks.view(dtype)


def bf16(blocks: Bytes) -> Floats:
    return (blocks.view("<u2").astype(np.uint32) << 16).view(np.float32)
