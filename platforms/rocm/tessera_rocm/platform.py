"""The platform: what core asks of it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from tessera.platform import AttentionBackend, Device, Kernel, PlatformError
from tessera.platform.probing import NoDeviceError
from tessera_rocm.facts import facts_of
from tessera_rocm.topology import cards
from tessera_triton import DeviceFacts
from tessera_triton.platform import TritonPlatform

GUARDED = (2, 13)
"""The version of torch from which collectives may be captured."""


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
    visible = "ROCR_VISIBLE_DEVICES"
    # the architecture of the opened device as ROCm says it, which HSA_OVERRIDE_GFX_VERSION may change; None before
    gfx: str | None = None

    def open(self, index: int) -> Device:
        device = super().open(index)
        self.gfx = self.torch.cuda.get_device_properties(index).gcnArchName.partition(":")[0]
        return device

    def _memory(self) -> int:
        try:
            return cards()[0].memory
        except NoDeviceError:
            return 0

    def _described(self, index: int) -> tuple[str, str]:
        properties = self.torch.cuda.get_device_properties(index)
        gfx, shared = properties.gcnArchName.partition(":")[0], getattr(properties, "shared_memory_per_block", 0)
        return str(properties.name), f"{gfx}, {shared >> 10} KiB of LDS"

    def _captures_collectives(self) -> bool:
        """The thread of torch that watches RCCL asks for events, which HIP refuses while any thread captures, and the
        process aborts. From torch 2.13 on it does not ask then (ATen's is_graph_capture_active)."""
        version = re.match(r"(\d+)\.(\d+)", self.torch.__version__)
        return version is not None and (int(version[1]), int(version[2])) >= GUARDED

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
