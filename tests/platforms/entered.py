"""A platform whose device is selected by thread: it refuses threads that touch it without having entered it."""

from __future__ import annotations

import threading
from typing import Any

import torch

from tessera.arrays import Array
from tessera.platform import Device, Future, HostDevice, Tensor
from tessera.testing import ReferencePlatform
from tessera.testing.reference import host_device

PATH = "tests.platforms.entered:EnteredPlatform"


class EnteredPlatform(ReferencePlatform):
    def open(self, index: int) -> Device:
        return EnteredDevice()


class EnteredDevice(HostDevice):
    """entered: threads that may touch it, the one that opened it among them. strangers: names of those that touched it
    all the same."""

    def __init__(self) -> None:
        super().__init__(torch, host_device().memory())
        self.entered, self.strangers = {threading.get_ident()}, set[str]()

    def enter_thread(self) -> None:
        self.entered.add(threading.get_ident())

    def _touch(self) -> None:
        if threading.get_ident() not in self.entered:
            self.strangers.add(threading.current_thread().name)
            raise RuntimeError(f"thread '{threading.current_thread().name}' has not entered the device")

    def synchronize(self) -> None:
        self._touch()

    def to_device(self, values: Array, out: Tensor | None = None) -> Tensor:
        self._touch()
        return super().to_device(values, out)

    def to_host(self, tensor: Tensor) -> Future[Any]:
        self._touch()
        return _Coming(self, super().to_host(tensor))


class _Coming:
    """Its end touches the device too, as an event's does."""

    def __init__(self, device: EnteredDevice, copy: Future[Any]) -> None:
        self.device, self.copy = device, copy

    def done(self) -> bool:
        self.device._touch()
        return self.copy.done()

    def result(self) -> Any:
        self.device._touch()
        return self.copy.result()

    def __del__(self) -> None:
        self.device._touch()
