"""Scripted engines whose models answer with numbers."""

from __future__ import annotations

from typing import Any

from tessera.config.pooler import PoolerConfig
from tests.server.fake_engine import FakeEngine

DIMENSIONS = 12
EMBEDDER = PoolerConfig(("embed", "token_embed"), "mean", dimensions=DIMENSIONS, matryoshka=(4, 8))
RERANKER = PoolerConfig(("classify",), "cls", labels=("LABEL_0",), activation="sigmoid")
CLASSIFIER = PoolerConfig(("classify", "token_classify"), "cls", labels=("sad", "glad", "mad"))
TOKENS = PoolerConfig(("token_embed",), "mean", dimensions=DIMENSIONS)


def pooling_engine(pooler: PoolerConfig = EMBEDDER, **fields: Any) -> FakeEngine:
    """One that does not generate, unless `generates` is among the fields."""
    return FakeEngine(pooler=pooler, **{"generates": False, **fields})
