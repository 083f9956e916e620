"""The routes for what a model does, which a client is told that asks it for something else."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

TASK_ROUTES: Mapping[str, str] = MappingProxyType(
    {
        "generate": "/v1/chat/completions",
        "transcribe": "/v1/audio/transcriptions",
        "translate": "/v1/audio/translations",
        "embed": "/v1/embeddings",
        "classify": "/classify, and /rerank and /score if it has one label",
        "token_embed": "/pooling",
        "token_classify": "/pooling",
    }
)
