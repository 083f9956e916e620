"""Whether it can run here. Core asks in a child process with a time limit."""

from __future__ import annotations

from pathlib import Path

from tessera.platform import DeviceInfo, Probe
from tessera_triton import has_compiler
from tessera_xpu.sysfs import Card, SysfsError, cards


def probe(root: Path = Path("/")) -> Probe:
    try:
        found = cards(root)
    except SysfsError as error:
        return Probe(0, str(error))
    score, reason = why(found[0], has_triton=has_compiler("intel"))
    return Probe(score, reason, tuple(DeviceInfo(card.name, number, card.memory) for number, card in enumerate(found)))


def why(card: Card, *, has_triton: bool) -> tuple[int, str]:
    """The score of a card, and the reason."""
    named = f"{card.name} (driver {card.driver})"
    if not has_triton:
        return 50, f"{named}, on reference ops: Triton for Intel GPUs is not installed"
    return 100, f"{named}, Triton kernels"
