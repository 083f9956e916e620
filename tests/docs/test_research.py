"""What docs/research.md shows is run, and says what the page says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "research.md"
SNIPPETS = dict(re.findall(r"<!-- run: (\w+) -->\n```\w+\n(.*?)```", PAGE.read_text(), re.DOTALL))
EXPECTED = {
    "seeds": r"same draws beside fifteen others: True",
    "rounding": r"float32: .* at most \d\.\de-0[5-9]|float32: .* at most 0\.0e\+00",
    "invariant": r"alone and in a batch, the same bits: True",
    "precision": r"[34] of 4 answers are the same; .* at most 0\.\d+",
    "beams": r"( +-\d+\.\d{3}  '.*'\n){4}",
}


def test_each_snippet_is_known() -> None:
    assert set(SNIPPETS) == set(EXPECTED)


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_a_snippet_says_what_the_page_says(name: str) -> None:
    # The page's reader has a platform installed; here it is named, so that a source tree will do.
    text = SNIPPETS[name].replace("LLM(dtype", 'LLM(platform="tessera_cpu.platform:CpuPlatform", dtype')
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert re.search(EXPECTED[name], done.stdout), done.stdout
