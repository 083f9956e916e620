"""Whether it can run here. Core asks in a child process with a time limit."""

from __future__ import annotations

from pathlib import Path

from tessera.platform import DeviceInfo, Probe
from tessera_rocm.facts import COMPILED, facts_of, like
from tessera_rocm.topology import Card, TopologyError, cards
from tessera_triton import has_compiler


def probe(root: Path = Path("/")) -> Probe:
    try:
        found = cards(root)
    except TopologyError as error:
        return Probe(0, str(error))
    score, reason = why(found[0], has_triton=has_compiler("amd"))
    return Probe(score, reason, tuple(DeviceInfo(card.name, number, card.memory) for number, card in enumerate(found)))


def why(card: Card, *, has_triton: bool) -> tuple[int, str]:
    """The score of a card, and the reason."""
    named = card.name if card.gfx in card.name else f"{card.name} ({card.gfx})"
    if facts_of(card, card.gfx) is None:
        return 50, f"{named}, on reference ops: there are kernels for {', '.join(COMPILED)} and their relatives alone"
    if not has_triton:
        return 50, f"{named}, on reference ops: Triton for AMD GPUs is not installed"
    relative = "" if card.gfx in COMPILED else f" as for {like(card.gfx)}"
    return 100, f"{named}, Triton kernels{relative}"
