from __future__ import annotations

import json
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from benchmarks.conversion import file_bits
from benchmarks.engines import Engine, find_peers, in_turn, ours
from benchmarks.running import EngineError, results
from benchmarks.task import Task
from benchmarks.tuning import Tuning, preload, ranges

DRIVER = "tests.unit.benchmarks.stub_driver"
TASK = Task("decode", "/models/small", "/models/small", "bfloat16", 4, 8, [1, 2], 100, 2, 0)


@pytest.fixture
def stub(tmp_path: Path) -> Engine:
    return Engine("stub", DRIVER, converted=tmp_path / "converted")


def test_what_libraries_print_is_no_result(stub: Engine):
    results = list(replace(stub, tuning=Tuning({"STUB_VERSION": "tuned"})).loaded(TASK))
    assert [result["batch"] for result in results] == [1, 2]
    assert {(result["version"], result["bits"]) for result in results} == {("tuned", 8.5)}
    assert all(result["peak_bytes"] > 0 and result["values"]["decode"] > 0 for result in results)
    assert [len(result["answers"]) for result in results] == [1, 2]


def test_a_start_is_timed_from_the_process_on(stub: Engine):
    (result,) = stub.loaded(replace(TASK, part="start", batches=[1]))
    assert result["load_s"] + 0.03 < result["values"]["ready_s"] < 60


def test_one_that_fails_says_its_last_line(stub: Engine):
    with pytest.raises(EngineError, match=r"^stub bf16 ended with 1: no such kernel$"):
        list(stub.loaded(replace(TASK, platform="fails")))


def test_one_that_ends_without_a_word_failed_too(stub: Engine):
    engine = replace(stub, tuning=Tuning({"STUB_ENDS": "1"}))
    with pytest.raises(EngineError, match=r"^stub bf16 ended before it was loaded$"):
        engine.loaded(TASK)


def test_one_that_has_ended_need_not_be_told_to_go_on():
    found = results("stub", [sys.executable, "-c", "print(1); print(2)"], {})
    for expected in (1, 2):
        assert next(found) == expected
        time.sleep(0.5)  # it has ended by then
    found.close()


def test_a_loaded_engine_waits_until_a_result_is_asked_for(stub: Engine, tmp_path: Path):
    log = tmp_path / "log"
    measured = replace(stub, tuning=Tuning({"STUB_LOG": str(log)})).loaded(TASK)
    assert log.read_text(encoding="utf-8") == "loaded\n"
    next(measured)
    answered = log.read_text(encoding="utf-8")
    assert "1 prompts" in answered
    time.sleep(0.2)
    assert log.read_text(encoding="utf-8") == answered
    assert next(measured)["batch"] == 2
    measured.close()


def test_an_engine_that_waits_is_stopped():
    program = "import os; print(os.getpid(), flush=True); input(); print(2)"
    found = results("stub", [sys.executable, "-c", program], {})
    status = Path(f"/proc/{next(found)}/stat")
    until = time.monotonic() + 20  # a signal is sent, not waited for
    while status.read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "T":
        assert time.monotonic() < until
        time.sleep(0.01)
    assert next(found) == 2
    found.close()


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


def test_an_engine_may_give_back_what_it_holds(stub: Engine, tmp_path: Path):
    log = tmp_path / "log"
    measured = replace(stub, tuning=Tuning({"STUB_LOG": str(log)})).loaded(TASK)
    measured.close()
    assert log.read_text(encoding="utf-8").splitlines()[-1] == "given back"


def test_a_model_is_converted_once(stub: Engine):
    converted = stub.converted / "small.stub"
    for content in ("small, whole\n", "as it was\n"):
        assert next(iter(stub.loaded(TASK)))["version"] == converted.name
        assert converted.read_text(encoding="utf-8") == content
        converted.write_text("as it was\n", encoding="utf-8")


def test_a_conversion_may_be_made_from_another(stub: Engine):
    task = replace(stub, precision="int8").prepared(TASK)
    assert Path(task.weights).read_text(encoding="utf-8") == "small.stub, rounded\n"
    assert task.precision == "int8"
    assert sorted(path.name for path in stub.converted.iterdir()) == ["small.int8.stub", "small.stub"]


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


def test_peers_are_the_environments_that_a_driver_knows(tmp_path: Path):
    for name in ("vllm-zentorch", "llama.cpp", "transformers", "numpy", "tessera"):
        (tmp_path / name / "bin").mkdir(parents=True)
        (tmp_path / name / "bin" / "python").touch()
    (tmp_path / "converted").mkdir()
    peers, others = find_peers(tmp_path, "bfloat16", tmp_path / "converted")
    assert [(peer.row, peer.precision, peer.module) for peer in peers] == [
        ("llama.cpp bf16", "plain", "benchmarks.peers.llama_cpp"),
        ("llama.cpp Q8_0", "int8", "benchmarks.peers.llama_cpp"),
        ("llama.cpp Q4_0", "int4", "benchmarks.peers.llama_cpp"),
        ("transformers bf16", "plain", "benchmarks.peers.transformers"),
        ("vllm-zentorch bf16", "plain", "benchmarks.peers.vllm"),
        ("vllm-zentorch W8A8", "int8", "benchmarks.peers.vllm"),
    ]
    assert peers[0].python == str(tmp_path / "llama.cpp" / "bin" / "python")
    assert others == ["numpy", "tessera"]


def test_ours_runs_beside_each_rival_of_its_precision():
    rivals = [Engine("o", DRIVER), Engine("v", DRIVER), Engine("v", DRIVER, precision="int8", variant="W8A8")]
    turns = in_turn([*rivals, *ours("bfloat16", Path())])
    assert [[engine.row for engine in turn] for turn in turns] == [
        ["tessera bf16", "o bf16"],
        ["tessera bf16", "v bf16"],
        ["tessera int8", "v W8A8"],
        ["tessera int4"],
    ]
    assert [[engine.row for engine in turn] for turn in in_turn(rivals)] == [["o bf16"], ["v bf16"], ["v W8A8"]]


def test_only_servers_are_asked_over_http():
    rows = [*ours("bfloat16", Path())[:1], Engine("o", "benchmarks.peers.openvino")]
    assert [[row.name for row in rows if row.takes(part)] for part in ("decode", "http", "start")] == [
        ["tessera", "o"],
        ["tessera"],
        ["tessera", "o"],
    ]


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
