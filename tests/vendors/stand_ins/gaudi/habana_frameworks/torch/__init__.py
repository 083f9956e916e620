"""Importing it registers the device, torch.hpu, and the ops of torch.ops.hpu."""

from __future__ import annotations

import os

os.environ["TORCH_FAKECHIP_NAME"] = "hpu"

from habana_frameworks.torch import hpu, ops

__all__ = ["hpu", "ops"]
