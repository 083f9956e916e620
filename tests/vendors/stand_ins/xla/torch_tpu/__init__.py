"""Stands in for torch_tpu: importing it registers the device `tpu`, torch.tpu and the backend "tpu" of torch.compile.
Names and arguments are those of torch-tpu 0.2.0; what is behind them is plain torch on a made-up device. Nothing here
is the vendor's."""

from __future__ import annotations

import os

os.environ["TORCH_FAKECHIP_NAME"] = "tpu"

from torch_tpu import dynamo, tpu

__all__ = ["dynamo", "tpu"]
