"""Adapters and grammars share a batch."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from tests.platforms.emulated import Family, share_a_batch
from tests.vendors.chosen import PLATFORM, start

pytestmark = pytest.mark.compiler


def test_adapters_and_grammars_share_a_batch(family: Family, tmp_path: Path) -> None:
    share_a_batch(partial(start, family("llama")), family("llama"), tmp_path, dtype=PLATFORM.dtype)
