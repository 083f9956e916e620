"""`tessera run-batch` from its flags to its files, with an engine that answers by a script."""

from __future__ import annotations

import io
import json
import os
import signal
import threading
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from tessera.cli.program import run
from tessera.cli.run_batch import BatchProgress
from tessera.errors import EngineDeadError
from tessera.log import LastingStream
from tessera.server.batches import runner
from tessera.server.batches.input_file import InputFile, RequestEntry
from tessera.server.batches.results import BatchResults
from tests.server.fake_engine import FakeEngine, Script
from tests.server.pooling_models import EMBEDDER

CHAT = "/v1/chat/completions"
PLATFORM = "a_platform.module:Platform"


def line(custom_id, url=CHAT, **fields):
    body = {"messages": [{"role": "user", "content": "Hi"}], **fields}
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": url, "body": body}) + "\n"


@pytest.fixture
def engine(monkeypatch):
    """It is started as often as `starts` says."""
    engine = FakeEngine()
    engine.starts = 0

    @asynccontextmanager
    async def running_engine(config, template, supervision):
        engine.starts += 1
        engine.supervision = supervision
        engine.config = replace(engine.config, scheduler=config.scheduler)
        engine.info.max_num_seqs = config.scheduler.max_num_seqs
        yield engine

    monkeypatch.setattr("tessera.cli.client.local.running_engine", running_engine)
    return engine


@pytest.fixture
def files(tmp_path):
    model = tmp_path / "tiny"
    model.mkdir()
    config = {"architectures": ["LlamaForCausalLM"], "vocab_size": 10, "max_position_embeddings": 32}
    (model / "config.json").write_text(json.dumps(config))
    (model / "generation_config.json").write_text('{"temperature": 0.6}')
    return tmp_path / "in.jsonl", tmp_path / "out.jsonl"


def run_batch(files, *flags):
    asked, answered = files
    always = ("--platform", PLATFORM, "--load-format", "dummy", "--skip-tokenizer-init")
    return run(["run-batch", "-i", str(asked), "-o", str(answered), str(asked.parent / "tiny"), *always, *flags])


def results_of(files):
    found = [json.loads(text) for text in files[1].read_text().splitlines()]
    assert len({one["custom_id"] for one in found}) == len(found)
    return {one["custom_id"]: one for one in found}


def test_each_request_has_a_line(engine, files, capsys):
    other = json.dumps({"custom_id": "c", "method": "POST", "url": "/v1/completions", "body": {"prompt": "Hi"}})
    files[0].write_text(line("a") + line("b", temperature=0) + other)
    assert run_batch(files) == 0
    found = results_of(files)
    assert set(found) == set("abc")
    assert {one["response"]["status_code"] for one in found.values()} == {200}
    assert found["a"]["response"]["body"]["choices"][0]["message"]["content"] == "Hello, wörld!"
    assert found["a"]["response"]["body"]["model"] == "tiny"
    assert sorted(call.params.temperature for call in engine.calls) == [0, 0.6, 0.6]  # as the model's file says
    output = capsys.readouterr()
    assert output.out == ""
    assert "3 requests: 3 answered, 0 failed at " in output.err


def test_a_request_that_fails_is_a_line_and_a_code(engine, files, capsys):
    files[0].write_text(line("a") + line("bad", model="none") + line("s", stream=True))
    assert run_batch(files, "--served-model-name", "mine") == 1
    found = results_of(files)
    assert [found[name]["response"]["status_code"] for name in ("a", "bad", "s")] == [200, 404, 400]
    assert found["a"]["response"]["body"]["model"] == "mine"
    assert "3 requests: 1 answered, 2 failed" in capsys.readouterr().err


def test_what_has_a_result_is_skipped(engine, files, capsys):
    files[0].write_text(line("a") + line("b"))
    assert run_batch(files) == 0
    before = files[1].read_bytes()
    files[1].write_bytes(before + before[:25])  # the last line was cut off
    files[0].write_text(line("a") + line("b") + line("c"))
    assert run_batch(files) == 0
    assert "2 of 3 requests have results already and are skipped" in capsys.readouterr().err
    assert set(results_of(files)) == set("abc")
    assert files[1].read_bytes().startswith(before)
    assert (engine.starts, len(engine.calls)) == (2, 3)
    assert run_batch(files) == 0
    assert engine.starts == 2
    assert "3 requests: 3 answered, 0 failed\n" in capsys.readouterr().err


WRONG = [
    ("{\n", "Line 1 of '", "is wrong: The line is not valid JSON"),
    (line("a") + line("a") + "{\n", "Line 2 of '", "is wrong (and 1 more): The custom_id is that of line 1 too"),
    (line("a", url="/v1/messages"), "Line 1 of '", "url must be one of /v1/chat/completions, /v1/completions, "),
    ("", "'", "is wrong: The file has no requests."),
]


@pytest.mark.parametrize(("text", "place", "reason"), WRONG, ids=range(len(WRONG)))
def test_a_wrong_file_is_one_line_that_names_its_line(engine, files, capsys, text, place, reason):
    files[0].write_text(text)
    assert run_batch(files) == 2
    output = capsys.readouterr()
    assert output.err.startswith(f"error: {place}")
    assert reason in output.err
    assert output.err.count("\n") == 1
    assert not engine.starts
    assert not files[1].exists()


def test_a_file_of_something_else_is_left_as_it_is(engine, files, capsys):
    files[0].write_text(line("a"))
    for text in ("my notes\n", "my notes", '{"custom_id": 1}\n'):
        files[1].write_text(text)
        assert run_batch(files) == 2
        assert "is not a result; name another output file." in capsys.readouterr().err
        assert files[1].read_text() == text
    assert not engine.starts


@pytest.mark.parametrize(
    ("flags", "code", "what"),
    [
        ([], 2, "Name both files: tessera run-batch -i FILE -o FILE MODEL."),
        (["-i", "a", "-o", "a"], 2, "are the same file; name another one."),
        (["-i", "no/such", "-o", "b"], 2, "--input-file 'no/such' cannot be read: No such file or directory."),
        (["-i", "in", "-o", "no/such/out"], 2, "--output-file 'no/such/out' cannot be written: No such file"),
        (["-i", "in", "-o", "out", "no/such/model"], 3, "There is no folder 'no/such/model'"),
        (["--model", "x"], 2, "--model: name the model after the flags"),
    ],
    ids=range(6),
)
def test_what_does_not_hold_is_one_line(engine, tmp_path, monkeypatch, capsys, flags, code, what):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in").write_text(line("a"))
    assert run(["run-batch", *flags]) == code
    output = capsys.readouterr()
    assert what in output.err
    assert (output.out, output.err.count("\n")) == ("", 1)


def test_an_engine_that_dies_ends_the_run_and_keeps_results(engine, files, capsys, monkeypatch):
    monkeypatch.setattr(runner, "PAUSE_SECONDS", 0)
    files[0].write_text("".join(line(str(number)) for number in range(40)))
    generate = engine.generate

    def dying(*given, **more):
        if len(engine.calls) == 9:
            engine.die()
        return generate(*given, **more)

    engine.generate = dying
    assert run_batch(files, "--max-num-seqs", "2") == EngineDeadError.exit_code
    assert "error: The engine died; run the same command again to go on.\n" in capsys.readouterr().err
    assert 0 < len(results_of(files)) < 10
    assert {one["response"]["status_code"] for one in results_of(files).values()} == {200}


def test_no_more_requests_are_in_flight_than_rows_and_as_many_that_wait(engine, files):
    most = 0
    files[0].write_text("".join(line(str(number)) for number in range(40)))
    engine.script = Script(delay=0.001)
    generate = engine.generate

    def counting(*given, **more):
        nonlocal most
        most = max(most, len(engine.running) + 1)
        return generate(*given, **more)

    engine.generate = counting
    assert run_batch(files, "--max-num-seqs", "3") == 0
    assert most == 6


def test_an_interrupt_ends_the_run_and_says_how_to_go_on(engine, files, capsys):
    files[0].write_text(line("a") + line("b"))
    engine.script = Script(hang_at=2)
    threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGTERM)).start()
    assert run_batch(files) == 0
    assert "stopped; run the same command again to go on\n" in capsys.readouterr().err
    assert not engine.running
    assert results_of(files) == {}


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(
    ("stream", "shown"),
    [
        (Terminal(), "\r\x1b[K  1 of 4 requests, 30 tokens/s, 0:00:30 left\r"),
        (io.StringIO(), "1 of 4 requests, 30 tokens/s, 0:00:30 left\n"),
    ],
)
def test_progress_is_a_line(tmp_path, monkeypatch, stream, shown):
    clock = [100.0]
    monkeypatch.setattr("tessera.cli.run_batch.time.monotonic", lambda: clock[0])
    results = BatchResults(tmp_path / "out", tmp_path / "out")
    source = InputFile(tmp_path / "in", [RequestEntry(str(number), "", 0, 0) for number in range(4)])
    progress = BatchProgress(source, results, LastingStream(stream))
    results.usage.output_tokens = 300
    clock[0] += 10
    progress.count()
    progress.count()  # too soon for another
    assert stream.getvalue() == shown


def test_texts_are_embedded(engine, files):
    engine.config = replace(engine.config, model=replace(engine.config.model, pooler=EMBEDDER, generates=False))
    engine.pooler = EMBEDDER
    made = {"custom_id": "a", "method": "POST", "url": "/v1/embeddings", "body": {"input": ["Hi", "there"]}}
    files[0].write_text(json.dumps(made))
    assert run_batch(files) == 0
    answer = results_of(files)["a"]["response"]["body"]
    assert [len(one["embedding"]) for one in answer["data"]] == [EMBEDDER.dimensions] * 2
