"""The same mistakes in fakechip with all that it can do: "tests.platforms.faulty.on_fakechip:EpsOutside"."""

from __future__ import annotations

from tessera_fakechip.stages import Static

from tests.platforms.faulty import planted
from tests.platforms.faulty.making import Base


def __getattr__(name: str) -> Base:
    return planted(name, Static)
