from __future__ import annotations

import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from benchmarks.engines import Engine, EngineError, find_peers
from benchmarks.measure import Task
from benchmarks.tuning import Tuning, preload, ranges

DRIVER = "tests.unit.benchmarks.stub_driver"
TASK = Task("/models/small", "/models/small", "bfloat16", 4, 8, [1, 2], 100, 2, 0)


def test_what_libraries_print_is_no_result():
    engine = Engine("stub", DRIVER, tuning=Tuning({"STUB_VERSION": "tuned"}))
    results = list(engine.run(TASK))
    assert [result["batch"] for result in results] == [1, 2]
    assert {result["version"] for result in results} == {"tuned"}
    assert all(result["peak_bytes"] > 0 and result["decode"] > 0 for result in results)


def test_one_that_fails_says_its_last_line():
    with pytest.raises(EngineError, match=r"^stub ended with 1: no such kernel$"):
        list(Engine("stub", DRIVER).run(replace(TASK, platform="fails")))


def test_processes_that_an_engine_leaves_are_ended():
    run = Engine("stub", DRIVER).run(replace(TASK, platform="leaves a process", batches=[1]))
    next(run)
    children = _processes_with("time.sleep(600)")
    assert children
    run.close()
    until = time.monotonic() + 20  # a signal is sent, not waited for, and the machine may be busy
    while children & _processes_with("time.sleep(600)"):
        assert time.monotonic() < until
        time.sleep(0.01)


def test_a_model_is_converted_once(tmp_path: Path):
    environment = tmp_path / "stub"
    (environment / "bin").mkdir(parents=True)
    (environment / "bin" / "python").symlink_to(sys.executable)
    engine = Engine("stub", DRIVER, environment)
    converted = tmp_path / "converted" / "small.bfloat16.stub"
    for content in ("converted\n", "as it was\n"):
        assert next(engine.run(TASK))["version"] == converted.name
        assert converted.read_text(encoding="utf-8") == content
        converted.write_text("as it was\n", encoding="utf-8")


def test_peers_are_the_environments_that_a_driver_knows(tmp_path: Path):
    for name in ("vllm-zentorch", "llama.cpp", "transformers", "numpy", "tessera"):
        (tmp_path / name / "bin").mkdir(parents=True)
        (tmp_path / name / "bin" / "python").touch()
    (tmp_path / "converted").mkdir()
    peers, others = find_peers(tmp_path)
    assert [(peer.name, peer.module) for peer in peers] == [
        ("llama.cpp", "benchmarks.peers.llama_cpp"),
        ("transformers", "benchmarks.peers.transformers"),
        ("vllm-zentorch", "benchmarks.peers.vllm"),
    ]
    assert peers[0].python == str(tmp_path / "llama.cpp" / "bin" / "python")
    assert others == ["numpy", "tessera"]


def test_what_cannot_be_loaded_first_is_named(tmp_path: Path):
    library = tmp_path / "lib" / "own.so"
    library.parent.mkdir()
    library.touch()
    found, missing = preload(tmp_path, system=("no_such_library",), own=("own.so", "other.so"))
    assert found == str(library)
    assert missing == [f"{name} is not there to be loaded first" for name in ("libno_such_library", "other.so")]


@pytest.mark.parametrize(("cores", "text"), [([0, 1], "0-1"), ([5, 0, 1, 2], "0-2,5"), ([3], "3")])
def test_cores_are_written_as_ranges(cores: list[int], text: str):
    assert ranges(cores) == text


def _processes_with(text: str) -> set[int]:
    """Those that run: an ended one has no command line any more."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if text in command:
            found.add(int(path.parent.name))
    return found
