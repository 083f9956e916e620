"""The platform: what core asks of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tessera.platform import Device, Kernel
from tessera.platform.probing import NoDeviceError
from tessera_triton import DeviceFacts
from tessera_triton.platform import TritonPlatform
from tessera_xpu.device import XpuDevice
from tessera_xpu.sysfs import cards

WIDTH = 32
"""Threads of a sub-group as Triton's backend for Intel GPUs prefers them."""
LEAST_SHARED, MOST_SHARED = 64 << 10, 128 << 10
"""Bytes of local memory that every supported GPU has, and the most that kernels are given."""


class XpuPlatform(TritonPlatform):
    name = "xpu"
    kind = "xpu"
    build = ("xpu", "an XPU")
    device_kind = "Intel GPU"
    check_device = (
        "that Intel's compute runtime (Level Zero) is installed and that this user may open /dev/dri (group render)"
    )
    compiler = "intel"
    collectives = "xccl"
    visible = "ZE_AFFINITY_MASK"

    def open(self, index: int) -> Device:
        self._require_device()
        name = self._make_current(index)
        self._require_one_kind(index)
        device = XpuDevice(self.torch, index)
        device.name = f"{name}, memory shared with the host" if device.integrated else name
        return device

    def _memory(self) -> int:
        try:
            return cards()[0].memory
        except NoDeviceError:
            return 0

    def _described(self, index: int) -> tuple[str, str]:
        properties = self.torch.xpu.get_device_properties(index)
        shared = getattr(properties, "local_mem_size", LEAST_SHARED) >> 10
        return str(properties.name), f"{properties.name}, {shared} KiB of local memory"

    def _captures_collectives(self) -> bool:
        """Nothing says that those of oneCCL may be captured."""
        return False

    def _more_kernels(self, facts: DeviceFacts) -> Mapping[str, Kernel[Any]]:
        from tessera_xpu.vllm_kernels import kernels, provider

        return kernels(facts, self._launcher(), provider())

    def _facts(self) -> DeviceFacts:
        """Of torch's current device. fp8: none, since nothing says which GPUs convert it."""
        self._require_device()
        properties = self.torch.xpu.get_device_properties()
        widths = properties.sub_group_sizes
        shared = min(getattr(properties, "local_mem_size", LEAST_SHARED), MOST_SHARED)
        warp_size = WIDTH if WIDTH in widths else max(widths)
        return DeviceFacts("xpu", properties.name, warp_size, shared, properties.gpu_subslice_count)
