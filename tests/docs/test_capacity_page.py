"""docs/capacity.md: what its command prints, and the flags and metrics that it names."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

from tessera.cli.bench.commands import serve
from tessera.engine.metrics import EngineMetrics
from tests.docs.steps import Shell, follow

PAGE = (Path(__file__).parents[2] / "docs/capacity.md").read_text(encoding="utf-8")


def test_the_command_prints_what_the_page_shows(tmp_path: Path) -> None:
    (tmp_path / "tessera").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m tessera.cli "$@"\n')
    (tmp_path / "tessera").chmod(0o755)
    with Shell(tmp_path, {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}) as shell:
        assert follow(PAGE, shell) == 1


def test_the_load_has_flags_that_there_are() -> None:
    blocks = re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) == 2
    options = {option for parameter in serve.params for option in parameter.opts}
    for block in blocks:
        flags = set(re.findall(r"--[\w-]+", block))
        assert len(flags) > 4
        assert flags <= options


def test_each_metric_is_exported() -> None:
    named = set(re.findall(r"tessera:(\w+)", PAGE))
    assert named
    assert named <= {metric.name for metric in EngineMetrics(512).read()}
