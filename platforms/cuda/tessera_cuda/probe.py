"""Whether it can run here. Core asks in a child process with a time limit."""

from __future__ import annotations

from tessera.platform import DeviceInfo, Probe
from tessera_cuda.driver import Card, DriverError, cards
from tessera_triton import has_compiler

OLDEST = 80
"""The lowest compute capability for which the kernels are compiled."""


def probe() -> Probe:
    try:
        found = cards()
    except DriverError as error:
        return Probe(0, str(error))
    score, reason = why(found[0], has_triton=has_compiler("nvidia"))
    return Probe(score, reason, tuple(DeviceInfo(card.name, number, card.memory) for number, card in enumerate(found)))


def why(card: Card, *, has_triton: bool) -> tuple[int, str]:
    """The score of a card, and the reason."""
    named = f"{card.name}, compute capability {card.capability / 10:.1f}"
    if card.capability < OLDEST:
        return 50, f"{named}, on reference ops: the kernels need 8.0"
    if not has_triton:
        return 50, f"{named}, on reference ops: Triton is not installed"
    return 100, f"{named}, Triton kernels"
