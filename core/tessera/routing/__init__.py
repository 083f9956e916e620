"""Which of several engines or servers gets a request: the one that has most of its prompt cached, among those whose
load allows it."""

from __future__ import annotations

from tessera.routing.blocks import BLOCK_TOKENS, hashed_blocks
from tessera.routing.policy import PrefixRouting

__all__ = ["BLOCK_TOKENS", "PrefixRouting", "hashed_blocks"]
