"""Tessera on devices of torch that XLA compiles for, at op depth. Experimental: neither has run on a TPU. The platform
for TPUs is tessera-tpu's."""

from __future__ import annotations

from tessera.platform import Manifest, hookimpl


@hookimpl
def platforms() -> list[Manifest]:
    return [
        Manifest(
            name,
            probe=f"tessera_xla.probe:{function}",
            platform=f"tessera_xla.platform:{platform}",
        )
        for name, function, platform in (
            ("torch-tpu", "torch_tpu", "TorchTpuPlatform"),
            ("torch-xla", "torch_xla", "TorchXlaPlatform"),
        )
    ]
