"""Whether it can run here. Core asks in a child process with a time limit."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from tessera.platform import Probe
from tessera.platform.probing import probe_cards
from tessera_triton import has_compiler
from tessera_xpu.sysfs import Card, cards


def probe(root: Path = Path("/")) -> Probe:
    return probe_cards(partial(cards, root), partial(why, has_triton=has_compiler("intel")))


def why(card: Card, *, has_triton: bool) -> tuple[int, str]:
    """The score of a card, and the reason."""
    named = f"{card.name} (driver {card.driver})"
    if not has_triton:
        return 50, f"{named}, on reference ops: Triton for Intel GPUs is not installed"
    return 100, f"{named}, Triton kernels"
