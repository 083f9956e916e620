"""The platform: what core asks of it."""

from __future__ import annotations

from tessera.platform import Device, OpSet, PlatformError, replace
from tessera_triton import DeviceFacts
from tessera_triton.platform import TritonPlatform
from tessera_xpu.device import XpuDevice

WIDTH = 32
"""Threads of a sub-group as Triton's backend for Intel GPUs prefers them."""
LEAST_SHARED, MOST_SHARED = 64 << 10, 128 << 10
"""Bytes of local memory that every supported GPU has, and the most that kernels are given."""


class XpuPlatform(TritonPlatform):
    """captures_collectives: nothing says that those of oneCCL may be captured."""

    name = "xpu"
    kind = "xpu"
    compiler = "intel"
    collectives = "xccl"
    captures_collectives = False

    def open(self, index: int) -> Device:
        self._require_device()
        name = self._make_current(index)
        device = XpuDevice(self.torch, index)
        device.name = f"{name}, memory shared with the host" if device.integrated else name
        return device

    def ops(self, reference: OpSet) -> OpSet:
        found, facts = super().ops(reference), self._compiled_facts()
        if facts is None:
            return found
        from tessera_xpu.vllm_kernels import kernels, provider

        return replace(found, **kernels(facts, self._launcher(), provider()))

    def _facts(self) -> DeviceFacts:
        """Of torch's current device. fp8: none, since nothing says which GPUs convert it."""
        self._require_device()
        properties = self.torch.xpu.get_device_properties()
        widths = properties.sub_group_sizes
        shared = min(getattr(properties, "local_mem_size", LEAST_SHARED), MOST_SHARED)
        warp_size = WIDTH if WIDTH in widths else max(widths)
        return DeviceFacts("xpu", properties.name, warp_size, shared, properties.gpu_subslice_count)

    def _require_device(self) -> None:
        torch = self.torch
        if torch.version.xpu is None:
            raise PlatformError(
                f"platform 'xpu' needs an XPU build of torch, and torch {torch.__version__} is none; install one."
            )
        if not torch.xpu.is_available():
            raise PlatformError(
                f"torch {torch.__version__} finds no Intel GPU; check that Intel's compute runtime (Level Zero) is "
                "installed and that this user may open /dev/dri (group render)."
            )
