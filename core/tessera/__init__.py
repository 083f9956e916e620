"""Tessera: an LLM server for any vendor's hardware."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tessera._version import __version__

if TYPE_CHECKING:
    from tessera.engine.beam_search import BeamSearchParams
    from tessera.llm import LLM
    from tessera.llm.inputs import PromptType, TextPrompt, TokensPrompt
    from tessera.lora import LoRARequest
    from tessera.pooling_params import PoolingParams
    from tessera.request import (
        ClassificationOutput,
        ClassificationRequestOutput,
        CompletionOutput,
        EmbeddingOutput,
        EmbeddingRequestOutput,
        PoolingOutput,
        PoolingRequestOutput,
        RequestOutput,
        ScoringOutput,
        ScoringRequestOutput,
    )
    from tessera.sampling_params import RequestOutputKind, SamplingParams, StructuredOutputsParams

__all__ = [
    "LLM",
    "BeamSearchParams",
    "ClassificationOutput",
    "ClassificationRequestOutput",
    "CompletionOutput",
    "EmbeddingOutput",
    "EmbeddingRequestOutput",
    "LoRARequest",
    "PoolingOutput",
    "PoolingParams",
    "PoolingRequestOutput",
    "PromptType",
    "RequestOutput",
    "RequestOutputKind",
    "SamplingParams",
    "ScoringOutput",
    "ScoringRequestOutput",
    "StructuredOutputsParams",
    "TextPrompt",
    "TokensPrompt",
    "__version__",
]

_PLACES = {
    "LLM": "tessera.llm",
    "BeamSearchParams": "tessera.engine.beam_search",
    "ClassificationOutput": "tessera.request",
    "ClassificationRequestOutput": "tessera.request",
    "CompletionOutput": "tessera.request",
    "EmbeddingOutput": "tessera.request",
    "EmbeddingRequestOutput": "tessera.request",
    "LoRARequest": "tessera.lora",
    "PoolingOutput": "tessera.request",
    "PoolingParams": "tessera.pooling_params",
    "PoolingRequestOutput": "tessera.request",
    "PromptType": "tessera.llm.inputs",
    "RequestOutput": "tessera.request",
    "RequestOutputKind": "tessera.sampling_params",
    "SamplingParams": "tessera.sampling_params",
    "ScoringOutput": "tessera.request",
    "ScoringRequestOutput": "tessera.request",
    "StructuredOutputsParams": "tessera.sampling_params",
    "TextPrompt": "tessera.llm.inputs",
    "TokensPrompt": "tessera.llm.inputs",
}


def __getattr__(name: str) -> Any:
    """Imports public names on first use, so that importing one part of tessera does not load the others. Raises
    ImportError for a name of vLLM's that says what to use instead: `from tessera import` hides any other error's
    words."""
    if name in _PLACES:
        return getattr(import_module(_PLACES[name]), name)
    if name[:1].isupper():  # no module of tessera, which is asked for here before it is imported
        from tessera.config.other_names import other_name

        other = other_name(f"tessera.{name}")
        if other is not None:
            raise ImportError(other.refusal, name="tessera")
    raise AttributeError(f"module 'tessera' has no attribute {name!r}")
