"""The platform: what core asks of it."""

from __future__ import annotations

from collections.abc import Sequence

from tessera.platform import AttentionBackend, Device, OpSet, PlatformError, TorchDevice, replace
from tessera_cuda.driver import DriverError, cards
from tessera_cuda.probe import OLDEST
from tessera_triton import DeviceFacts
from tessera_triton.platform import TritonPlatform


class CudaPlatform(TritonPlatform):
    name = "cuda"
    kind = "cuda"
    compiler = "nvidia"
    collectives = "nccl"

    def open(self, index: int) -> Device:
        torch = self.torch
        if torch.version.cuda is None:
            raise PlatformError(
                f"platform 'cuda' needs a CUDA build of torch, and torch {torch.__version__} is none; install one."
            )
        if not torch.cuda.is_available():
            raise PlatformError(
                f"torch {torch.__version__} finds no NVIDIA GPU; check with nvidia-smi that the driver works and is as "
                f"new as CUDA {torch.version.cuda} needs."
            )
        name = self._make_current(index)
        device = TorchDevice(torch, self.kind, index)
        device.name = name
        return device

    def ops(self, reference: OpSet) -> OpSet:
        found, facts = super().ops(reference), self._compiled_facts()
        if facts is None:
            return found
        from tessera_cuda.humming import kernels, package

        return replace(found, **kernels(facts, self._launcher(), package()))

    def attention_backends(self) -> Sequence[AttentionBackend]:
        """Those of other packages first: they were tuned for these cards, and Triton's tiles here were not."""
        facts = self._compiled_facts()
        if facts is None:
            return ()
        from tessera_cuda.flash_attention import FlashAttention2, FlashAttention3
        from tessera_cuda.flashinfer import FlashInfer

        found = (kind(facts, self._launcher()) for kind in (FlashAttention3, FlashAttention2, FlashInfer))
        return (*found, *super().attention_backends())

    def _facts(self) -> DeviceFacts | None:
        """None for a card older than OLDEST."""
        try:
            card = cards()[0]
        except DriverError as error:
            raise PlatformError(f"{error}; the platform 'cuda' needs an NVIDIA card and its driver.") from error
        if card.capability < OLDEST:
            return None
        fp8 = "float8_e4m3fn" if card.capability >= 89 else None
        return DeviceFacts("cuda", card.capability, 32, card.shared_bytes, card.processors, card.capability >= 90, fp8)
