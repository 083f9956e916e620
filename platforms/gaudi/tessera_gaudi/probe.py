"""Whether it can run here. Core asks in a child process with a time limit."""

from __future__ import annotations

from functools import partial
from importlib.util import find_spec
from pathlib import Path

from tessera.platform import Probe
from tessera.platform.probing import probe_cards
from tessera_gaudi.sysfs import Card, cards


def probe(root: Path = Path("/")) -> Probe:
    return probe_cards(partial(cards, root), why)


def why(card: Card) -> tuple[int, str]:
    """The score of a card, and the reason."""
    if find_spec("habana_frameworks") is None:
        return 0, f"there is {card.name}, but not habana_frameworks: install the Gaudi software's own build of torch"
    return 100, f"{card.name}, SynapseAI's ops and HPU graphs"
