"""The selective scan of Mamba: what its backends read."""

from __future__ import annotations

from typing import NamedTuple

from tessera.platform.device import Tensor


class ScanInput(NamedTuple):
    """What a selective scan reads of tokens; rows of any stride."""

    # what the convolution returned: [T, channels]
    inputs: Tensor
    # results are multiplied by their SiLU: [T, channels]
    gates: Tensor
    # steps, before their bias and softplus: [T, channels]
    dt: Tensor
    # what a token's input is written to the state with: [T, state size]
    b: Tensor
    # what the state is read with: [T, state size]
    c: Tensor
