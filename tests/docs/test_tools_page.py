"""docs/tools.md: its program runs against the served demo, and it names each family."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

from tessera.parsing.formats import CALLS, OPENAI, REASONING
from tessera.server.settings import Limits
from tests.e2e.served import Served

PAGE = (Path(__file__).parents[2] / "docs" / "tools.md").read_text(encoding="utf-8")


def test_the_program_prints_a_call(tmp_path: Path) -> None:
    (program,) = re.findall(r"<!-- run: client -->\n```python\n(.*?)```", PAGE, re.DOTALL)
    with Served([], tmp_path / "log") as served:
        text = program.replace("127.0.0.1:8000", f"127.0.0.1:{served.port}")
        done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    for line in done.stdout.splitlines():
        name, arguments = line.split(" ", 1)
        assert name == "get_weather"
        assert set(json.loads(arguments)) == {"city"}


def test_each_family_is_named() -> None:
    calls, reasoning = PAGE.split("| Calls | Written as |")[1].split("| Reasoning | Written as |")
    for part, names in ((calls, {*CALLS, OPENAI}), (reasoning, {*REASONING, OPENAI})):
        rows = re.findall(r"^\| ([^|]*) \|", part, re.MULTILINE)
        assert {name for row in rows for name in re.findall(r"`(\w+)`", row)} == names


def test_the_limits_are_those_of_the_code() -> None:
    assert f"at most {Limits.tools} functions and custom tools, {Limits.tools_bytes >> 20} MiB in all" in PAGE
