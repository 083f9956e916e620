"""The platform: what core asks of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tessera.platform import AttentionBackend, Device, Kernel, PlatformError
from tessera.platform.probing import NoDeviceError
from tessera_rocm.facts import facts_of
from tessera_rocm.topology import cards
from tessera_triton import DeviceFacts
from tessera_triton.platform import TritonPlatform


class RocmPlatform(TritonPlatform):
    """ROCm builds of torch call the device "cuda", and RCCL "nccl"."""

    name = "rocm"
    kind = "cuda"
    build = ("hip", "a ROCm")
    device_kind = "AMD GPU"
    check_device = (
        "with rocminfo that ROCm {version} supports the card, and that this user may open /dev/kfd (group render)"
    )
    compiler = "amd"
    collectives = "nccl"
    # the architecture of the opened device as ROCm says it, which HSA_OVERRIDE_GFX_VERSION may change; None before
    gfx: str | None = None

    def open(self, index: int) -> Device:
        device = super().open(index)
        self.gfx = self.torch.cuda.get_device_properties(index).gcnArchName.partition(":")[0]
        return device

    def _more_kernels(self, facts: DeviceFacts) -> Mapping[str, Kernel[Any]]:
        from tessera_rocm.aiter_products import kernels, provider

        return kernels(facts, self._launcher(), provider())

    def _more_backends(self, facts: DeviceFacts) -> Sequence[AttentionBackend]:
        """AMD tuned aiter's tiles for these cards, and ours were not."""
        from tessera_rocm.aiter import AiterAttention

        return [AiterAttention(facts, self._launcher())]

    def _facts(self) -> DeviceFacts | None:
        """None for an architecture that the kernels were not compiled for, nor for a relative of it."""
        try:
            found = cards()
        except NoDeviceError as error:
            raise PlatformError(f"{error}; the platform 'rocm' needs an AMD GPU.") from error
        card = next((card for card in found if card.gfx == self.gfx), found[0])
        return facts_of(card, self.gfx or card.gfx)
