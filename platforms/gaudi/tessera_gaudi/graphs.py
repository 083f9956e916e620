"""HPU graphs: captured launches of SynapseAI."""

from __future__ import annotations

from typing import Any

from tessera.platform import DeviceGraph


class HpuGraph(DeviceGraph):
    """Graphs share no memory pool, and a replay waits unless it is told not to."""

    def __init__(self, torch: Any) -> None:
        super().__init__(torch, "hpu")

    def replay(self) -> None:
        self.graph.replay(asynchronous=True)

    def pool(self) -> None:
        return None
