"""The groups of a worker, over the platform's communicator or core's default: torch.distributed, with the device's own
backend if there is one, else through host memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

import torch
import torch.distributed as dist
from torch import Tensor

from tessera.config.mesh import Axis, Mesh
from tessera.errors import PlatformError
from tessera.platform.collectives import Alone, Communicator, TorchCommunicator, Transfer
from tessera.platform.device import Device
from tessera.platform.platform import Platform, WorkerSpec

HOST_BACKEND = "gloo"


def join(platform: Platform, spec: WorkerSpec, rendezvous: str, device: Device) -> Communicator:
    """Joins the group of all workers, with the platform's communicator if it has one, else core's. rendezvous: a URL
    where the workers meet; unused for a single worker."""
    if spec.world_size == 1:
        return Alone()
    return platform.communicator(spec, device, rendezvous) or torch_group(spec, rendezvous, device)


def torch_group(spec: WorkerSpec, rendezvous: str, device: Device) -> TorchCommunicator:
    """The group of all workers over torch.distributed, with the device's default backend, else through the host."""
    own = dist.Backend.default_device_backend_map.get(device.target.type)
    if own is not None:
        return TorchCommunicator.join(torch, own, rendezvous, spec.rank, spec.world_size)
    staged = StagedCommunicator.join(torch, HOST_BACKEND, rendezvous, spec.rank, spec.world_size)
    staged.device = device
    return staged


def groups_of(mesh: Mesh, world: Communicator) -> dict[str, Communicator]:
    """This worker's group along each axis of the mesh. world: all workers. Raises PlatformError if the platform places
    fewer workers than the mesh has, and they cannot be divided."""

    def group(axis: Axis) -> Communicator:
        if mesh.sizes[axis] == mesh.size:
            return world
        if mesh.sizes[axis] == 1:
            return Alone()
        if world.size != mesh.size:
            shape = " x ".join(f"--{name}-parallel-size {each}" for name, each in mesh.sizes.items())
            raise PlatformError(
                f"the platform runs {world.size} workers for {mesh.size} devices, which cannot be divided by {shape}; "
                "remove --pipeline-parallel-size."
            )
        return world.new_group(mesh.group(axis, world.rank), axis, {})

    return mesh.groups(group)


class StagedCommunicator(TorchCommunicator):
    """For a device without a torch.distributed backend: copies tensors through host memory, so that a chip without
    collectives of its own can still serve on several devices. Over gloo."""

    # Whose tensors are copied; set by torch_group(), and the same in groups of some of these ranks.
    device: Device

    def new_group(self, ranks: Sequence[int], role: str, options: Mapping[str, Any]) -> Self:
        group = super().new_group(ranks, role, options)
        group.device = self.device
        return group

    def all_reduce(self, x: Tensor) -> Tensor:
        return x.copy_(super().all_reduce(self._staged(x)))

    def all_gather(self, x: Tensor, dim: int) -> Tensor:
        gathered: Tensor = super().all_gather(self._staged(x), dim).to(x.device)
        return gathered

    def send(self, x: Tensor, to: int) -> None:
        super().send(self._staged(x), to)

    def recv(self, x: Tensor, source: int) -> Transfer:
        staged = torch.empty(x.shape, dtype=x.dtype)
        return _Staged(x, staged, super().recv(staged, source))

    def _staged(self, x: Tensor) -> Tensor:
        copy = x.to("cpu", non_blocking=True)
        self.device.synchronize()
        return copy


class _Staged:
    """A transfer into the host's memory, from where it goes on to the device."""

    def __init__(self, x: Tensor, staged: Tensor, transfer: Transfer) -> None:
        self.x, self.staged, self.transfer = x, staged, transfer

    def wait(self) -> None:
        self.transfer.wait()
        self.x.copy_(self.staged)
