"""Importing it registers the backend "hccl" of torch.distributed."""

from __future__ import annotations

from torch.distributed import Backend
from torch_fakechip.group import DeviceGroup

Backend.register_backend("hccl", DeviceGroup, devices=["hpu"])
