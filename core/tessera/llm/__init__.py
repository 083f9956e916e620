"""The offline front door: a model in a Python user's own process."""

from __future__ import annotations

from tessera.llm.llm import LLM

__all__ = ["LLM"]
