"""Stands in for torch_npu: importing it registers the device, torch.npu, the backend "hccl" of torch.distributed, and
ops with the schemas of the published wheel, computed in plain torch on a made-up device. Nothing is the vendor's."""

from __future__ import annotations

import os

os.environ["TORCH_FAKECHIP_NAME"] = "npu"

from torch.distributed import Backend
from torch_fakechip.group import DeviceGroup

from torch_npu import npu, ops

__all__ = ["npu", "ops"]

Backend.register_backend("hccl", DeviceGroup, devices=["npu"])


def npu_fusion_attention(*_, **__):
    raise NotImplementedError("transformers imports it where there is a torch_npu; nothing here calls it")
