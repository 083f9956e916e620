"""Whether it can run here. Core asks in a child process with a time limit."""

from __future__ import annotations

from functools import partial

from tessera.platform import Probe, Reason
from tessera.platform.probing import probe_cards
from tessera_cuda.driver import Card, cards
from tessera_triton.installed import absent

OLDEST = 80
"""The lowest compute capability for which the kernels are compiled."""


def probe() -> Probe:
    return probe_cards(cards, partial(why, missing=absent("nvidia", "NVIDIA GPUs")))


def why(card: Card, *, missing: Reason | None) -> tuple[int, str]:
    """The score of a card, and the reason. missing: why no kernel runs, whatever the card is."""
    named = f"{card.name}, compute capability {card.capability / 10:.1f}"
    if card.capability < OLDEST:
        return 50, f"{named}, on reference ops: the kernels need 8.0"
    if missing is not None:
        return 50, f"{named}, on reference ops: {missing}"
    return 100, f"{named}, Triton kernels"
