"""Whether it can run here. Core asks in a child process with a time limit."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from tessera.platform import DeviceInfo, Probe
from tessera.platform.probing import counted, inaccessible, numbered

_MANAGER = "davinci_manager"
"""The driver's file in /dev through which all NPUs are opened."""


def probe(root: Path = Path("/")) -> Probe:
    """From the driver's files in /dev alone: neither torch nor CANN is loaded, which takes seconds."""
    nodes = numbered(root / "dev", "davinci")
    if not nodes:
        return Probe(0, "the kernel's driver for Ascend NPUs finds none")
    named = counted(len(nodes), "Ascend NPU")
    shut = inaccessible([*nodes, root / "dev" / _MANAGER])
    if shut:
        return Probe(
            0,
            f"there is {named}, but /dev/{shut[0].name} cannot be opened: add the user to the group HwHiAiUser, or "
            f"start the container with --device=/dev/davinciN --device=/dev/{_MANAGER}",
        )
    if find_spec("torch_npu") is None:
        return Probe(0, f"there is {named}, but not torch_npu: install CANN and the torch_npu of this torch's version")
    numbers = [node.name.removeprefix("davinci") for node in nodes]
    devices = tuple(DeviceInfo(f"Ascend NPU {number}", index) for index, number in enumerate(numbers))
    return Probe(100, f"{named}, torch_npu's ops and ACL graphs", devices)
