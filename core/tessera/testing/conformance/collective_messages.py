"""What the ranks that try collectives are told, and what they say."""

from __future__ import annotations

import msgspec

from tessera.platform.platform import WorkerSpec
from tessera.testing.conformance.collective_checks import IN_EACH_DTYPE, ONCE


class Start(msgspec.Struct):
    """folder: where tensors of what fails are left, by rank."""

    platform: str
    spec: WorkerSpec
    rendezvous: str
    folder: str
    dtypes: list[str]


class Said(msgspec.Struct):
    """text: what is wrong; "" where nothing is. ended: by an error, after which the group is of no more use."""

    check: str
    text: str = ""
    ended: bool = False


def checks_of(dtypes: list[str]) -> list[tuple[str, str, str]]:
    """Id, check and dtype of each, in the order they run."""
    typed = [(f"{name}-{dtype}", name, dtype) for name in IN_EACH_DTYPE for dtype in dtypes]
    return typed + [(name, name, dtypes[0]) for name in ONCE]
