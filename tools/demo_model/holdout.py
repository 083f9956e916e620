"""Decides which items the model must never see in training: a rule over hashes, so that there is no list to
maintain."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

# One in this many keys of a kind is held out. A key is "kind:argument:argument...".
ONE_IN = {
    "capital": 5,  # (fact, wording)
    "country": 5,  # (fact, wording)
    "sum": 10,  # ordered operand pair
    "difference": 10,  # ordered operand pair
    "product": 10,  # ordered operand pair
    "list": 5,  # (topic, first, count)
    "json": 5,  # (keys, values)
    "call": 5,  # (tool, arguments)
}


def key(kind: str, *arguments: object) -> str:
    """The key of an item, the same for every wording (except for facts, whose wording is an argument)."""
    return ":".join((kind, *map(str, arguments)))


def is_held_out(item_key: str) -> bool:
    """Whether SHA-256 selects this key as held out for its kind."""
    digest = hashlib.sha256(f"tessera-demo/{item_key}".encode()).digest()
    return int.from_bytes(digest[:8], "big") % ONE_IN[item_key.partition(":")[0]] == 0


def any_held_out(keys: Iterable[str]) -> bool:
    """Whether any of the keys is held out."""
    return any(is_held_out(item_key) for item_key in keys)
