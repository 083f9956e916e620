"""Whether it can run here. Core asks in a child process with a time limit."""

from __future__ import annotations

from functools import partial

from tessera.platform import Probe
from tessera.platform.probing import probe_cards
from tessera_cuda.driver import Card, cards
from tessera_triton import has_compiler

OLDEST = 80
"""The lowest compute capability for which the kernels are compiled."""


def probe() -> Probe:
    return probe_cards(cards, partial(why, has_triton=has_compiler("nvidia")))


def why(card: Card, *, has_triton: bool) -> tuple[int, str]:
    """The score of a card, and the reason."""
    named = f"{card.name}, compute capability {card.capability / 10:.1f}"
    if card.capability < OLDEST:
        return 50, f"{named}, on reference ops: the kernels need 8.0"
    if not has_triton:
        return 50, f"{named}, on reference ops: Triton is not installed"
    return 100, f"{named}, Triton kernels"
