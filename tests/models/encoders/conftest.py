"""The tiny models, each made when it is first asked for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.models.encoders.families import (
    DECODERS,
    ENCODERS,
    THROUGH_TRANSFORMERS,
    THROUGH_TRANSFORMERS_DECODERS,
    WITHOUT_HEADS,
)

FAMILIES = {**ENCODERS, **WITHOUT_HEADS, **DECODERS, **THROUGH_TRANSFORMERS, **THROUGH_TRANSFORMERS_DECODERS}
Saved = Callable[[str, str], tuple[Path, Any]]


@pytest.fixture(scope="session")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Saved:
    """(family, head) -> (the checkpoint's folder, transformers' model)."""
    known: dict[tuple[str, str], tuple[Path, Any]] = {}

    def of(family: str, head: str) -> tuple[Path, Any]:
        if (family, head) not in known:
            folder = tmp_path_factory.mktemp(f"{family}-{head}")
            known[family, head] = folder, FAMILIES[family].save(head, folder)
        return known[family, head]

    return of
