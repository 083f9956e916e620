"""The platform without its compiler, which takes a second for each shape of each engine, and with models whose heads
the card cannot hold, as the kit's are; attention of these is the reference's."""

from __future__ import annotations

from typing import Any

from tessera.platform import Device, Problem
from tessera_spyre.platform import SpyrePlatform


class Eager(SpyrePlatform):
    def graph_runner(self, device: Device) -> None:
        return None

    def check(self, config: Any, model: Any) -> tuple[Problem, ...]:
        return ()
