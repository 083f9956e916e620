"""docs/llm.md lists what LLM has, and what it shows is run."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tessera import LLM

PAGE = (Path(__file__).parents[2] / "docs" / "llm.md").read_text(encoding="utf-8")


def test_every_call_has_a_row() -> None:
    listed = re.findall(r"^\| `(\w+)\(", PAGE, re.MULTILINE)
    assert sorted(listed) == sorted(name for name in vars(LLM) if not name.startswith("_"))


def test_the_snippet_gives_the_answers_of_what_was_enqueued() -> None:
    ((name, text),) = re.findall(r"<!-- run: (\w+) -->\n```\w+\n(.*?)```", PAGE, re.DOTALL)
    assert name == "enqueue"
    # The page's reader has a platform installed; here it is named, so that a source tree will do.
    text = text.replace("LLM(dtype", 'LLM(platform="tessera_cpu.platform:CpuPlatform", dtype')
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"True \d 'The capital of France'\nTrue \d 'Once upon'\nTrue [1-4] 'Hello'\n", done.stdout), (
        done.stdout
    )
