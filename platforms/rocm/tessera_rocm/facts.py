"""Which kernels a card can run."""

from __future__ import annotations

from dataclasses import replace

from tessera_rocm.topology import Card
from tessera_triton import TARGETS, DeviceFacts

_FAMILIES = {"gfx110": "gfx1100", "gfx115": "gfx1151", "gfx120": "gfx1201"}
"""Architectures that begin so have the instructions of that one, for which every kernel is compiled."""

COMPILED = tuple(name for name, facts in TARGETS.items() if facts.backend == "hip")


def like(gfx: str) -> str | None:
    """The architecture for which the kernels are compiled that a card of this one runs; None if there is none."""
    return gfx if gfx in COMPILED else _FAMILIES.get(gfx[:-1])


def facts_of(card: Card, gfx: str) -> DeviceFacts | None:
    """gfx: the architecture that ROCm says the card has, by default its own."""
    name = like(gfx)
    known = None if name is None else TARGETS[name]
    if known is None or card.warp_size not in (0, known.warp_size):
        return None
    shared = card.shared_bytes or known.shared_bytes
    return replace(known, arch=gfx, shared_bytes=shared, processors=card.processors)
