"""Importing it registers the device, torch.hpu, and the ops of torch.ops.hpu."""

from __future__ import annotations

from habana_frameworks.torch import hpu, ops

__all__ = ["hpu", "ops"]
