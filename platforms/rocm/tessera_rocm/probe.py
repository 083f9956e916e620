"""Whether it can run here. Core asks in a child process with a time limit."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from tessera.platform import Probe, Reason
from tessera.platform.probing import probe_cards
from tessera_rocm.facts import COMPILED, facts_of, like
from tessera_rocm.topology import Card, cards
from tessera_triton.installed import absent


def probe(root: Path = Path("/")) -> Probe:
    return probe_cards(partial(cards, root), partial(why, missing=absent("amd", "AMD GPUs")))


def why(card: Card, *, missing: Reason | None) -> tuple[int, str]:
    """The score of a card, and the reason. missing: why no kernel runs, whatever the card is."""
    named = card.name if card.gfx in card.name else f"{card.name} ({card.gfx})"
    if facts_of(card, card.gfx) is None:
        return 50, f"{named}, on reference ops: there are kernels for {', '.join(COMPILED)} and their relatives alone"
    if missing is not None:
        return 50, f"{named}, on reference ops: {missing}"
    relative = "" if card.gfx in COMPILED else f" as for {like(card.gfx)}"
    return 100, f"{named}, Triton kernels{relative}"
