"""Mistakes in what the CPU platform alone promises: "tests.platforms.faulty.on_cpu:SumsOfManySplit"."""

from __future__ import annotations

from tessera_cpu.platform import CpuPlatform
from tests.platforms.faulty import planted
from tests.platforms.faulty.making import Base


def __getattr__(name: str) -> Base:
    return planted(name, CpuPlatform)
