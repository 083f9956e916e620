"""The platform: what core asks of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tessera.platform import AttentionBackend, Kernel, PlatformError
from tessera.platform.probing import NoDeviceError
from tessera_cuda.driver import cards
from tessera_cuda.probe import OLDEST
from tessera_triton import DeviceFacts, Launcher
from tessera_triton.direct import DirectLauncher
from tessera_triton.platform import TritonPlatform


class CudaPlatform(TritonPlatform):
    name = "cuda"
    kind = "cuda"
    build = ("cuda", "a CUDA")
    device_kind = "NVIDIA GPU"
    check_device = "with nvidia-smi that the driver works and is as new as CUDA {version} needs"
    compiler = "nvidia"
    collectives = "nccl"
    visible = "CUDA_VISIBLE_DEVICES"

    def _new_launcher(self) -> Launcher:
        return DirectLauncher()

    def _memory(self) -> int:
        try:
            return cards()[0].memory
        except NoDeviceError:
            return 0

    def _described(self, index: int) -> tuple[str, str]:
        """As the driver says it, which numbers devices as torch does."""
        card = cards()[index]
        capability, shared = card.capability / 10, card.shared_bytes >> 10
        return card.name, f"compute capability {capability:.1f}, {shared} KiB of shared memory"

    def _more_kernels(self, facts: DeviceFacts) -> Mapping[str, Kernel[Any]]:
        from tessera_cuda.humming import kernels, package

        return kernels(facts, self._launcher(), package())

    def _more_backends(self, facts: DeviceFacts) -> Sequence[AttentionBackend]:
        """They were tuned for these cards, and Triton's tiles here were not."""
        from tessera_cuda.flash_attention import FlashAttention2, FlashAttention3
        from tessera_cuda.flashinfer import FlashInfer

        return [kind(facts, self._launcher()) for kind in (FlashAttention3, FlashAttention2, FlashInfer)]

    def _facts(self) -> DeviceFacts | None:
        """None for a card older than OLDEST."""
        try:
            card = cards()[0]
        except NoDeviceError as error:
            raise PlatformError(f"{error}; the platform 'cuda' needs an NVIDIA card and its driver.") from error
        if card.capability < OLDEST:
            return None
        fp8 = "float8_e4m3fn" if card.capability >= 89 else None
        return DeviceFacts("cuda", card.capability, 32, card.shared_bytes, card.processors, card.capability >= 90, fp8)
