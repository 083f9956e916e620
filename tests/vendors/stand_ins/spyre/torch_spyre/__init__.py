"""Stands in for torch_spyre: importing it registers the device, torch.spyre, the backend "spyreccl" of
torch.distributed and its part of torch's compiler. Names and arguments are those of the published source and pages;
what is behind them is plain torch on a made-up device. Nothing here is the vendor's."""

from __future__ import annotations

import os

os.environ["TORCH_FAKECHIP_NAME"] = "spyre"

from torch_spyre import distributed, inductor, spyre

__all__ = ["distributed", "inductor", "spyre"]
