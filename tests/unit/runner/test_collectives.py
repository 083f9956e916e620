"""Core's collectives through host memory."""

from __future__ import annotations

from pathlib import Path

import torch

from tessera.platform import WorkerSpec
from tessera.platform.device import HostDevice, MemoryFigures
from tessera.runner.collectives import StagedCommunicator, torch_group


class UnbackedDevice(HostDevice):
    """torch.distributed has no backend for its kind of device."""

    def __init__(self) -> None:
        super().__init__(torch, MemoryFigures(0, 0, host=True))
        self.target = torch.device("meta")


def test_a_group_of_some_ranks_copies_through_the_same_device(tmp_path: Path) -> None:
    device = UnbackedDevice()
    world = torch_group(WorkerSpec(0, 1, (0,)), (tmp_path / "rendezvous").as_uri(), device)
    try:
        group = world.new_group([0], "tensor", {})
        assert isinstance(group, StagedCommunicator)
        assert (group.device, group.rank, group.size) == (device, 0, 1)
        x = torch.arange(4.0)
        assert group.all_reduce(x).tolist() == [0.0, 1.0, 2.0, 3.0]
    finally:
        world.close()
