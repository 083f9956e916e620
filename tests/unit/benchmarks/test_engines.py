from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path

import pytest
from benchmarks.conversion import file_bits
from benchmarks.engines import Engine, find_peers, in_turn, limits, ours
from benchmarks.running import EngineError
from benchmarks.task import Task
from benchmarks.tuning import Tuning, preload, ranges

DRIVER = "tests.unit.benchmarks.stub_driver"
TASK = Task("decode", "/models/small", "/models/small", "bfloat16", 4, 8, [1, 2], 100, 2, 0)


@pytest.fixture
def stub(tmp_path: Path) -> Engine:
    return Engine("stub", DRIVER, converted=tmp_path / "converted")


def test_what_libraries_print_is_no_result(stub: Engine):
    results = list(replace(stub, tuning=Tuning({"STUB_VERSION": "tuned"})).run(TASK))
    assert [result["batch"] for result in results] == [1, 2]
    assert {(result["version"], result["bits"]) for result in results} == {("tuned", 8.5)}
    assert all(result["peak_bytes"] > 0 and result["values"]["decode"] > 0 for result in results)
    assert [len(result["answers"]) for result in results] == [1, 2]


def test_a_start_is_timed_from_the_process_on(stub: Engine):
    (result,) = stub.run(replace(TASK, part="start", batches=[1]))
    assert result["load_s"] + 0.03 < result["values"]["ready_s"] < 60


def test_one_that_fails_says_its_last_line(stub: Engine):
    with pytest.raises(EngineError, match=r"^stub bf16 ended with 1: no such kernel$"):
        list(stub.run(replace(TASK, platform="fails")))


def test_processes_that_an_engine_leaves_are_ended(stub: Engine):
    run = stub.run(replace(TASK, platform="leaves a process", batches=[1]))
    next(run)
    children = _processes_with("time.sleep(600)")
    assert children
    run.close()
    until = time.monotonic() + 20  # a signal is sent, not waited for, and the machine may be busy
    while children & _processes_with("time.sleep(600)"):
        assert time.monotonic() < until
        time.sleep(0.01)


def test_a_model_is_converted_once(stub: Engine):
    converted = stub.converted / "small.stub"
    for content in ("small, whole\n", "as it was\n"):
        assert next(iter(stub.run(TASK)))["version"] == converted.name
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


def test_rows_of_one_precision_run_beside_each_other():
    rows = in_turn([*ours("bfloat16", Path()), *limits("bfloat16")])
    assert [row.row for row in rows] == [
        *("tessera bf16", "limit bf16"),
        *("tessera int8", "limit int8"),
        *("tessera int4", "limit int4"),
    ]


def test_only_servers_are_asked_over_http_and_limits_do_not_start():
    rows = [*ours("bfloat16", Path())[:1], *limits("bfloat16")[:1], Engine("o", "benchmarks.peers.openvino")]
    assert [[row.name for row in rows if row.takes(part)] for part in ("decode", "http", "start")] == [
        ["tessera", "limit", "o"],
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
