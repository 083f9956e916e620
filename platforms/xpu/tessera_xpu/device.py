"""The device: a TorchDevice that may have no memory of its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tessera.platform import MemoryFigures, TorchDevice


class XpuDevice(TorchDevice):
    """integrated: it uses the host's memory. Of such a device torch cannot ask how much memory is free (SYCL's aspect
    ext_intel_free_memory is missing), so it has what the host has available, up to what Level Zero gives one process.
    root: of the host's file system."""

    def __init__(self, torch: Any, index: int, root: Path = Path("/")) -> None:
        super().__init__(torch, "xpu", index)
        self.properties, self.root = torch.xpu.get_device_properties(index), root
        said = getattr(self.properties, "is_integrated_gpu", None)  # older torches do not know
        self.integrated = self._own_memory() is None if said is None else bool(said)

    def memory(self) -> MemoryFigures:
        own = None if self.integrated else self._own_memory()
        if own is not None:
            return own
        total = int(self.properties.total_memory)
        left = max(total - int(self.torch.accelerator.memory_reserved(self.target)), 0)
        if self.integrated:
            return MemoryFigures(total=total, free=min(left, available(self.root)), host=True)
        return MemoryFigures(total=total, free=left)  # other processes are not counted

    def peak(self, run: Callable[[], object]) -> int | None:
        """None where all that runs on the host changes how much memory is free."""
        return None if self.integrated else super().peak(run)

    def _own_memory(self) -> MemoryFigures | None:
        """What the driver says of the device's own memory; None if it does not say."""
        try:
            return super().memory()
        except RuntimeError:
            return None


def available(root: Path) -> int:
    """Bytes of the host's memory that processes can still take."""
    lines = (root / "proc/meminfo").read_text(encoding="utf-8").splitlines()
    said = dict(line.split(":", 1) for line in lines if ":" in line)
    return int(said["MemAvailable"].split()[0]) << 10
