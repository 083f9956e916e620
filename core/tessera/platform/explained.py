"""What was chosen for a model, in words."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Explained:
    """What does one part of a model. what: attention, the name of an op, or what may be quantised; place: where in the
    model. others: whatever else could have done it, and why it does not."""

    what: str
    place: str
    chosen: str
    others: tuple[tuple[str, str], ...] = ()
