"""The platform: what core asks of it."""

from __future__ import annotations

from collections.abc import Sequence

from tessera.platform import AttentionBackend, Device, OpSet, PlatformError, TorchDevice, replace
from tessera_rocm.facts import facts_of
from tessera_rocm.topology import TopologyError, cards
from tessera_triton import DeviceFacts
from tessera_triton.platform import TritonPlatform


class RocmPlatform(TritonPlatform):
    """ROCm builds of torch call the device "cuda", and RCCL "nccl". gfx: the architecture of the opened device as ROCm
    says it, which HSA_OVERRIDE_GFX_VERSION may change; None before."""

    name = "rocm"
    kind = "cuda"
    compiler = "amd"
    collectives = "nccl"
    gfx: str | None = None

    def open(self, index: int) -> Device:
        torch = self.torch
        if torch.version.hip is None:
            raise PlatformError(
                f"platform 'rocm' needs a ROCm build of torch, and torch {torch.__version__} is none; install one."
            )
        if not torch.cuda.is_available():
            raise PlatformError(
                f"torch {torch.__version__} finds no AMD GPU; check with rocminfo that ROCm {torch.version.hip} "
                "supports the card, and that this user may open /dev/kfd (group render)."
            )
        name = self._make_current(index)
        device = TorchDevice(torch, self.kind, index)
        device.name = name
        self.gfx = torch.cuda.get_device_properties(index).gcnArchName.partition(":")[0]
        return device

    def ops(self, reference: OpSet) -> OpSet:
        found, facts = super().ops(reference), self._compiled_facts()
        if facts is None:
            return found
        from tessera_rocm.aiter_products import kernels, provider

        return replace(found, **kernels(facts, self._launcher(), provider()))

    def attention_backends(self) -> Sequence[AttentionBackend]:
        """aiter's first: AMD tuned its tiles for these cards, and ours were not."""
        facts = self._compiled_facts()
        if facts is None:
            return ()
        from tessera_rocm.aiter import AiterAttention

        return (AiterAttention(facts, self._launcher()), *super().attention_backends())

    def _facts(self) -> DeviceFacts | None:
        """None for an architecture that the kernels were not compiled for, nor for a relative of it."""
        try:
            found = cards()
        except TopologyError as error:
            raise PlatformError(f"{error}; the platform 'rocm' needs an AMD GPU.") from error
        card = next((card for card in found if card.gfx == self.gfx), found[0])
        return facts_of(card, self.gfx or card.gfx)
