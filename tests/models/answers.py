"""Tiny models and what transformers answers, each made when it is first asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tools.parity.family import Family, save_model
from tools.parity.oracle import Answer, ask_family

Answers = Callable[[str], tuple[Path, list[Answer]]]


def answers_of(families: Mapping[str, Family], factory: pytest.TempPathFactory, num_prompts: int) -> Answers:
    """Family's name -> (its checkpoint's folder, the answers)."""
    known: dict[str, tuple[Path, list[Answer]]] = {}

    def of(name: str) -> tuple[Path, list[Answer]]:
        if name not in known:
            folder = factory.mktemp(name)
            model = save_model(families[name], folder)
            known[name] = folder, ask_family(families[name], model, num_prompts)
        return known[name]

    return of
