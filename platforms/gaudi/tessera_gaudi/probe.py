"""Whether it can run here. Core asks in a child process with a time limit."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from tessera.platform import DeviceInfo, Probe
from tessera_gaudi.sysfs import SysfsError, cards


def probe(root: Path = Path("/")) -> Probe:
    try:
        found = cards(root)
    except SysfsError as error:
        return Probe(0, str(error))
    if find_spec("habana_frameworks") is None:
        return Probe(
            0, f"there is {found[0].name}, but not habana_frameworks: install the Gaudi software's own build of torch"
        )
    devices = tuple(DeviceInfo(card.name, number) for number, card in enumerate(found))
    return Probe(100, f"{found[0].name}, SynapseAI's ops and HPU graphs", devices)
