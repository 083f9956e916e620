"""The time mixing of RWKV: what its backends read."""

from __future__ import annotations

from typing import NamedTuple

from tessera.platform.device import Tensor


class WKVInput(NamedTuple):
    """What time mixing reads of tokens; rows of any stride."""

    # logarithms of how much their values weigh: [T, channels]
    keys: Tensor
    # what is averaged: [T, channels]
    values: Tensor
