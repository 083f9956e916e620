"""Whether it can run here. Core asks in a child process with a time limit."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from tessera.platform import Probe, Reason
from tessera.platform.probing import probe_cards
from tessera_triton.installed import absent
from tessera_xpu.sysfs import Card, cards


def probe(root: Path = Path("/")) -> Probe:
    return probe_cards(partial(cards, root), partial(why, missing=absent("intel", "Intel GPUs")))


def why(card: Card, *, missing: Reason | None) -> tuple[int, str]:
    """The score of a card, and the reason. missing: why no kernel runs, whatever the card is."""
    named = f"{card.name} (driver {card.driver})"
    if missing is not None:
        return 50, f"{named}, on reference ops: {missing}"
    return 100, f"{named}, Triton kernels"
