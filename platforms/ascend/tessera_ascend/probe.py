"""Whether it can run here. Core asks in a child process with a time limit."""

from __future__ import annotations

import os
import re
from importlib.util import find_spec
from pathlib import Path

from tessera.platform import DeviceInfo, Probe

_MANAGER = "davinci_manager"
"""The driver's file in /dev through which all NPUs are opened."""


def probe(root: Path = Path("/")) -> Probe:
    """From the driver's files in /dev alone: neither torch nor CANN is loaded, which takes seconds."""
    nodes = [node for node in (root / "dev").glob("davinci*") if re.fullmatch(r"davinci\d+", node.name)]
    if not nodes:
        return Probe(0, "the kernel's driver for Ascend NPUs finds none")
    named = f"{len(nodes)} Ascend NPU{'s' if len(nodes) > 1 else ''}"
    shut = [node.name for node in (*nodes, root / "dev" / _MANAGER) if not os.access(node, os.R_OK | os.W_OK)]
    if shut:
        return Probe(
            0,
            f"there is {named}, but /dev/{min(shut)} cannot be opened: add the user to the group HwHiAiUser, or start "
            f"the container with --device=/dev/davinciN --device=/dev/{_MANAGER}",
        )
    if find_spec("torch_npu") is None:
        return Probe(0, f"there is {named}, but not torch_npu: install CANN and the torch_npu of this torch's version")
    numbers = sorted(int(node.name.removeprefix("davinci")) for node in nodes)
    devices = tuple(DeviceInfo(f"Ascend NPU {number}", index) for index, number in enumerate(numbers))
    return Probe(100, f"{named}, torch_npu's ops and ACL graphs", devices)
