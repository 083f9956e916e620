"""docs/formats.md is what the platforms say; `python -m tools.format_table` writes it anew."""

from __future__ import annotations

import pytest


def test_the_page_is_what_the_platforms_say() -> None:
    pytest.importorskip("triton")
    from tools.format_table import PAGE, page

    assert PAGE.read_text(encoding="utf-8") == page()
