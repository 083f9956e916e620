"""fakechip, as its vendor's extension of torch: importing this registers the device.

Compiled where there is a C++ compiler; otherwise, or where TORCH_FAKECHIP=python, in Python, which runs a part. `kind`
says which it is and `part`, in one line, what of the device is there.
"""

from __future__ import annotations

import os
from types import ModuleType

from torch_fakechip.build import BuildError


def _registered() -> tuple[ModuleType, str]:
    if os.environ.get("TORCH_FAKECHIP") != "python":
        try:
            from torch_fakechip import compiled
        except BuildError as error:
            reason = str(error)
        else:
            return compiled, "all of the device"
    else:
        reason = "TORCH_FAKECHIP=python"
    from torch_fakechip import interpreted

    return interpreted, f"{interpreted.PART} ({reason})"


device, part = _registered()
kind = device.KIND
reads, waits, ops, copies, allocated = device.reads, device.waits, device.ops, device.copies, device.allocated
refused_reads, only_ops, reset, Graph = device.refused_reads, device.only_ops, device.reset, device.Graph
device_count = device.device_count
