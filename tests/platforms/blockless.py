"""The CPU without products with the blocks of GGUF files."""

from __future__ import annotations

from tessera.platform import Reason, Scheme
from tessera_cpu.platform import CpuPlatform

PATH = "tests.platforms.blockless:BlocklessPlatform"


class BlocklessPlatform(CpuPlatform):
    name = "blockless"

    def scheme(self, scheme: Scheme) -> Scheme | Reason:
        return "no blocks" if scheme.weight.encoding is not None else super().scheme(scheme)
