"""The offline API: a model in the user's own Python process."""

from __future__ import annotations

from tessera.llm.llm import LLM

__all__ = ["LLM"]
