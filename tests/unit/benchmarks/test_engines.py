from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path

import pytest
from benchmarks.conversion import file_bits
from benchmarks.engines import Engine, in_turn, ours
from benchmarks.running import EngineError
from benchmarks.task import Task

DRIVER = "tests.unit.benchmarks.stub_driver"
TASK = Task("decode", "/models/small", "/models/small", "bfloat16", 4, 8, [1, 2], 100, 2, 0)


@pytest.fixture
def stub(tmp_path: Path) -> Engine:
    return Engine("stub", DRIVER, converted=tmp_path / "converted")


def test_a_start_is_timed_from_the_process_on(stub: Engine):
    (result,) = stub.loaded(replace(TASK, part="start", batches=[1]))
    assert result["load_s"] + 0.03 < result["values"]["ready_s"] < 60


def test_one_that_fails_says_its_last_line(stub: Engine):
    with pytest.raises(EngineError, match=r"^stub bf16 ended with 1: no such kernel$"):
        list(stub.loaded(replace(TASK, platform="fails")))


def test_processes_that_an_engine_leaves_are_ended(stub: Engine):
    run = stub.loaded(replace(TASK, platform="leaves a process", batches=[1]))
    next(run)
    children = _processes_with("time.sleep(600)")
    assert children
    run.close()
    until = time.monotonic() + 20  # a signal is sent, not waited for, and the machine may be busy
    while children & _processes_with("time.sleep(600)"):
        assert time.monotonic() < until
        time.sleep(0.01)


def test_bits_of_a_weight_are_those_of_what_is_loaded(tmp_path: Path):
    model, made = tmp_path / "model", tmp_path / "made"
    for folder in (model, made):
        folder.mkdir()
    header = json.dumps({"embed_tokens": {"shape": [10, 8]}, "norm": {"shape": [20]}}).encode()
    (model / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    (made / "openvino_model.bin").write_bytes(bytes(50))
    (made / "openvino_tokenizer.bin").write_bytes(bytes(999))
    assert file_bits(made, model) == 4.0
    assert file_bits(made / "openvino_model.bin", model) == 4.0


def test_ours_runs_beside_each_rival_of_its_precision():
    rivals = [Engine("o", DRIVER), Engine("v", DRIVER), Engine("v", DRIVER, precision="int8", variant="W8A8")]
    turns = in_turn([*rivals, *ours("bfloat16", Path())])
    assert [[engine.row for engine in turn] for turn in turns] == [
        ["tessera bf16", "o bf16"],
        ["tessera bf16", "v bf16"],
        ["tessera int8", "v W8A8"],
        ["tessera int4"],
        ["tessera GGUF"],
    ]
    assert [[engine.row for engine in turn] for turn in in_turn(rivals)] == [["o bf16"], ["v bf16"], ["v W8A8"]]


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
