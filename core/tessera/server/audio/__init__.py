"""OpenAI's audio API: recordings that a model of speech writes down, or translates."""

from __future__ import annotations
