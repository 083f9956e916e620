"""Tessera: an LLM server for any vendor's hardware."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tessera._version import __version__

if TYPE_CHECKING:
    from tessera.engine.beam_search import BeamSearchParams
    from tessera.llm import LLM
    from tessera.request import RequestOutput
    from tessera.sampling_params import SamplingParams, StructuredOutputsParams

__all__ = ["LLM", "BeamSearchParams", "RequestOutput", "SamplingParams", "StructuredOutputsParams", "__version__"]

_PLACES = {
    "LLM": "tessera.llm",
    "BeamSearchParams": "tessera.engine.beam_search",
    "RequestOutput": "tessera.request",
    "SamplingParams": "tessera.sampling_params",
    "StructuredOutputsParams": "tessera.sampling_params",
}


def __getattr__(name: str) -> Any:
    """Imports public names on first use, so that importing one part of tessera does not load the others."""
    if name not in _PLACES:
        raise AttributeError(f"module 'tessera' has no attribute {name!r}")
    return getattr(import_module(_PLACES[name]), name)
