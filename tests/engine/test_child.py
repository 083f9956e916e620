"""An engine's process that runs before there is a configuration for it, and what it imports meanwhile."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tessera.engine.async_engine import AsyncEngine
from tessera.engine.child import IN_PROCESS, WORKERS, EngineChild, executor_path
from tessera.engine.process import import_meanwhile
from tessera.errors import ModelError, PlatformError
from tests.engine import fakes
from tests.engine.test_async_engine import tokens_of
from tests.engine.test_engine_death import engines_of, left_of


def test_which_executor_an_engine_imports():
    assert [executor_path(workers) for workers in (1, 2, 8)] == [IN_PROCESS, WORKERS, WORKERS]


async def test_an_engine_takes_the_process_that_runs_already():
    with EngineChild(fakes.EXECUTOR) as child:
        engine = await AsyncEngine.start(fakes.config(), text=None, executor=fakes.EXECUTOR, child=child)
        assert engine.info.pid == child.pid
        assert engines_of(os.getpid()) == [child.pid]
        assert await tokens_of(engine, [1], max_tokens=3) == fakes.answer([1], 3)
        await engine.shutdown()
        assert engines_of(os.getpid()) == []


async def test_what_was_imported_for_nothing_ends_no_start():
    """The process imports what most likely comes; who runs the steps, the configuration says."""
    with EngineChild("json:dumps") as child:
        engine = await AsyncEngine.start(fakes.config(), text=None, executor=fakes.EXECUTOR, child=child)
        await engine.shutdown()


async def test_a_process_that_ended_before_its_configuration_is_told_of():
    with EngineChild(fakes.EXECUTOR) as child:
        os.kill(child.pid, 9)
        child.wait()
        with pytest.raises(Exception, match=r"was killed \(signal 9\)"):
            await AsyncEngine.start(fakes.config(), text=None, executor=fakes.EXECUTOR, child=child)


def test_the_key_of_clients_is_not_in_an_engines_environment(monkeypatch):
    monkeypatch.setenv("TESSERA_API_KEY", "sk-secret")
    with EngineChild(fakes.EXECUTOR) as child:
        deadline = time.monotonic() + 20
        while b"PYTHONSAFEPATH=1" not in (variables := Path(f"/proc/{child.pid}/environ").read_bytes().split(b"\0")):
            assert time.monotonic() < deadline  # it is not this program yet
    assert not [variable for variable in variables if b"sk-secret" in variable]


def test_what_nobody_configures_is_ended_with_its_context():
    with EngineChild(fakes.EXECUTOR) as child:
        assert left_of(child.pid)
    assert not left_of(child.pid)
    assert engines_of(os.getpid()) == []
    child.end()  # again


def test_it_ends_without_a_word_when_its_parent_does_before_the_configuration():
    program = "import sys, time; from tessera.engine.child import EngineChild; EngineChild(sys.argv[1]); time.sleep(99)"
    parent = subprocess.Popen([sys.executable, "-c", program, fakes.EXECUTOR], stderr=subprocess.PIPE)
    while not (found := engines_of(parent.pid)):
        time.sleep(0.01)
    parent.kill()
    assert parent.communicate(timeout=60)[1] == b""  # both have ended then: they share it
    assert not Path(f"/proc/{found[0]}").exists() or Path(f"/proc/{found[0]}/stat").read_text().split()[2] == "Z"


class Telling(fakes.FakeExecutor):
    """Says how the collector of its process stands, in place of loading."""

    def load(self, report):
        raise ModelError(f"on: {gc.isenabled()}, passes imports over: {gc.get_freeze_count() > 0}")


async def test_imports_are_not_searched_and_what_comes_after_them_is():
    with pytest.raises(ModelError, match="on: True, passes imports over: True"):
        await AsyncEngine.start(fakes.config(), text=None, executor=f"{__name__}:Telling")


@pytest.mark.parametrize(("path", "error"), [("no_such:Name", PlatformError), ("breaking:Name", ZeroDivisionError)])
def test_an_import_that_fails_is_raised_where_it_can_be_told(path, error, tmp_path, monkeypatch):
    (tmp_path / "breaking.py").write_text("1 / 0")
    monkeypatch.syspath_prepend(tmp_path)
    imported = import_meanwhile(path)
    with pytest.raises(error):
        imported.result()
