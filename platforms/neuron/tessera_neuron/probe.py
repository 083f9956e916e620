"""Whether it can run here. Core asks in a child process with a time limit."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from tessera.platform import DeviceInfo, Probe
from tessera.platform.probing import counted, inaccessible, numbered

OLDEST = (2, 13)
"""The first torch-neuronx that brings a device of torch; older ones are built on XLA."""


def probe(root: Path = Path("/")) -> Probe:
    """From the driver's files in /dev alone: neither torch nor the Neuron runtime is loaded. A file is one chip, whose
    cores the runtime groups into several devices of torch."""
    nodes = numbered(root / "dev", "neuron")
    if not nodes:
        return Probe(0, "the kernel's driver for Neuron devices finds none")
    named = counted(len(nodes), "Neuron device")
    shut = inaccessible(nodes)
    if shut:
        return Probe(
            0,
            f"there is {named}, but /dev/{shut[0].name} cannot be opened: start the container with "
            "--device=/dev/neuronN",
        )
    found = _version()
    if found is None:
        return Probe(0, f"there is {named}, but not torch-neuronx: install it from the vendor's package index")
    if tuple(map(int, found.split(".")[:2])) < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        return Probe(0, f"there is {named}, but torch-neuronx {found}, which has no device of torch: install {oldest}")
    numbers = [node.name.removeprefix("neuron") for node in nodes]
    devices = tuple(DeviceInfo(f"Neuron device {number}", index) for index, number in enumerate(numbers))
    return Probe(100, f"{named}, compiled by torch-neuronx {found}; experimental, never run on one", devices)


def _version() -> str | None:
    try:
        return version("torch-neuronx")
    except PackageNotFoundError:
        return None
