"""`tessera plugin check`: everything that a plugin does wrong is named, with its place, and nothing else is."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from tessera.cli.program import run
from tessera.plugins.check import check, read_package

ROOT = Path(__file__).parents[3]
PYPROJECT = """
[build-system]
requires = ["hatchling", "torch>=2"]

[project]
name = "tessera-bad"
dependencies = ["tessera-llm==0.1.0"]

[project.entry-points.tessera]
bad = "tessera_bad"
"""
MANIFEST = """
import os
import threading
import time

from tessera.platform import Manifest, hookimpl
from tessera_bad.probe import probe

os.environ["BAD"] = "1"
threading.Thread(target=time.sleep, args=(0,)).start()
print("hello")
open(os.devnull, "w").close()
time.sleep(1.1)
try:
    import torch
except ImportError:
    torch = None


@hookimpl
def platforms():
    probe()
    return [Manifest("bad", "tessera_bad.probe:probe", "tessera_bad.platform:Bad", {"platform": 7, "speed": 0})]


@hookimpl
def platform():
    return []
"""
PROBE = """
import ctypes

try:
    chip = ctypes.CDLL("libc.so.6")
except OSError:
    chip = None


def probe():
    return None
"""
PLATFORM = """
import pickle
import sys
from unittest import mock

import torch
import tessera.layers.linear
from tessera import platform as tp
from tessera.platform import API_LEVELS, AttentionBackend, Platform, TorchDevice
from tessera.runner.runner import CoreRunner

tessera.layers.linear.Linear = None
TorchDevice.synchronize = lambda self: None
API_LEVELS["platform"] = 7
tp.Device.seed, ours = None, 1
setattr(CoreRunner, "execute", None)
mock.patch("tessera.engine.engine.Engine").start()
sys.modules["tessera.scheduler"] = None


class Base(Platform):
    def attention_backend(self):
        return torch.load("x")


class Bad(Base):
    capabilites = None

    def warm(self):
        return eval("1")


class Attention(AttentionBackend):
    def plans(self):
        return exec("1")
"""
FOUND = """
pyproject.toml:2: building requires torch
pyproject.toml:6: pins tessera-llm==0.1.0
tessera_bad/__init__.py: takes
tessera_bad/__init__.py: the manifest of bad: it was written for level 7 of platform, core has 0
tessera_bad/__init__.py:9: changes the environment
tessera_bad/__init__.py:10: starts a thread
tessera_bad/__init__.py:11: prints
tessera_bad/__init__.py:12: writes a file
tessera_bad/__init__.py:15: imports torch
tessera_bad/__init__.py:22: calls the probe
tessera_bad/__init__.py:27: implements a hook 'platform'
tessera_bad/platform.py:2: imports pickle
tessera_bad/platform.py:7: imports tessera.layers.linear
tessera_bad/platform.py:10: imports tessera.runner.runner.CoreRunner
tessera_bad/platform.py:12: assigns tessera.layers.linear.Linear, which is core's
tessera_bad/platform.py:13: assigns TorchDevice.synchronize, which is core's
tessera_bad/platform.py:14: assigns API_LEVELS['platform'], which is core's
tessera_bad/platform.py:15: assigns tp.Device.seed, which is core's
tessera_bad/platform.py:16: setattr on tessera.runner.runner.CoreRunner, which is core's
tessera_bad/platform.py:17: patches tessera.engine.engine.Engine, which is core's
tessera_bad/platform.py:18: writes to sys.modules
tessera_bad/platform.py:22: Base defines attention_backend, which Platform does not have; did it mean attention_back
tessera_bad/platform.py:23: calls torch.load
tessera_bad/platform.py:27: Bad defines capabilites, which Platform does not have; did it mean capabilities?
tessera_bad/platform.py:29: Bad defines warm, which Platform does not have; call it _warm if it is your own
tessera_bad/platform.py:30: calls eval
tessera_bad/platform.py:34: Attention defines plans, which AttentionBackend does not have; did it mean plan?
tessera_bad/platform.py:35: calls exec
tessera_bad/probe.py:5: calls ctypes.CDLL as the probe's module is imported
tessera_bad/probe.py:5: opens a shared library as the manifest is imported
""".strip().splitlines()


def written(folder: Path, manifest: str, pyproject: str = PYPROJECT, **others: str) -> Path:
    package = folder / "tessera_bad"
    package.mkdir()
    folder.joinpath("pyproject.toml").write_text(pyproject.lstrip("\n"))
    for name, text in {"__init__": manifest, **others}.items():
        package.joinpath(f"{name}.py").write_text(textwrap.dedent(text))
    return folder


def test_all_that_a_plugin_does_wrong_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = written(tmp_path, MANIFEST, probe=PROBE, platform=PLATFORM)
    assert run(["plugin", "check", str(folder)]) == 1
    *lines, count = capsys.readouterr().out.splitlines()
    assert len(lines) == len(FOUND), "\n".join(lines)
    for line, found in zip(lines, FOUND, strict=True):
        assert line.startswith(found)
        assert "; " in line
    assert count == f"{len(FOUND)} findings in 3 files"


def test_the_platform_of_this_tree_breaks_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plugin", "check", str(ROOT / "platforms" / "cpu")]) == 0
    assert capsys.readouterr().out.startswith("no findings in ")


GOOD = PYPROJECT.replace(', "torch>=2"', "").replace("==0.1.0", ">=0.1")


@pytest.mark.parametrize(
    ("manifest", "found"),
    [
        ("while True:\n    pass\n", "importing it did not end within 0.5 s"),
        ("import os\nos._exit(3)\n", "importing it ended the process: no word"),
        ("import nobody_has_this\n", "cannot be imported: ModuleNotFoundError: No module named 'nobody_has_this'"),
        ("x = 1\n", "tessera_bad has no hooks; mark its functions with tessera.platform.hookimpl"),
        ("def platforms():\n    return []\n", "has the hook platforms, which core does not see; mark it with hookimpl"),
        ("def f(:\n", "is not Python"),
    ],
)
def test_a_manifest_that_gives_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, manifest: str, found: str
) -> None:
    from tessera.plugins.check import rules as looked

    if "while" in manifest:
        monkeypatch.setattr(looked, "SECONDS", 0.5)
    lines = [str(finding) for finding in check(read_package(written(tmp_path, manifest, GOOD)))]
    assert any(found in line for line in lines), lines


def test_what_is_allowed_is_not_named(tmp_path: Path) -> None:
    manifest = """
    from typing import TYPE_CHECKING
    from tessera.platform import Manifest, hookimpl
    if TYPE_CHECKING:
        from tessera.config import EngineConfig

    @hookimpl
    def platforms():
        return [Manifest("bad", "tessera_bad.probe:probe", "tessera_bad.own:Own")]
    """
    own = """
    import dataclasses
    from tessera.platform import Platform

    class Mine:
        def anything(self):
            self.platform = Platform
            setattr(self, "name", 1)

    class Own(Platform):
        name = "own"
        ROWS = 3
        def _helper(self):
            return None
    """
    folder = written(tmp_path, manifest, GOOD, own=own, probe="def probe():\n    import torch\n    torch.empty(1)\n")
    tests = folder / "tests"
    tests.mkdir()
    tests.joinpath("test_it.py").write_text("from tessera.testing import REFERENCE\n")
    assert check(read_package(folder)) == []
    tests.joinpath("test_it.py").write_text("from tessera.runner import worker\n")
    assert [finding.what for finding in check(read_package(folder))] == ["imports tessera.runner.worker"]


def test_what_no_runner_takes_is_named(tmp_path: Path) -> None:
    own = """
    from tessera.platform import ModelRunner

    class Runner(ModelRunner):
        takes = frozenset({"drafts", "quantisation"})

    class Better(Runner):
        takes: frozenset[str] = frozenset({"drafts"}) | {"stages", "whatever"}
    """
    found = [str(finding) for finding in check(read_package(written(tmp_path, "x = 1\n", GOOD, own=own)))]
    takes = [line.partition(": ")[2] for line in found if "takes" in line]
    assert takes[0] == "Runner takes 'quantisation', which no runner can; did it mean quantization?"
    assert takes[1].startswith("Better takes 'whatever', which no runner can; there is quantization, kv_cache_dtype, ")
    assert len(takes) == 2


def test_what_is_no_plugin_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plugin", "check", str(tmp_path / "absent")]) == 2
    assert run(["plugin", "check", str(tmp_path)]) == 2
    first, second = capsys.readouterr().err.splitlines()
    assert "is no folder; name the one that holds the plugin's pyproject.toml" in first
    assert "holds no Python file" in second
