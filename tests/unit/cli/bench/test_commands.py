"""The commands from their flags to what they print and write, with a server that is not there."""

from __future__ import annotations

import json
from functools import partial

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from tessera._version import __version__
from tessera.cli.bench.results import latency_figures
from tessera.cli.client.remote import connect
from tessera.cli.program import run
from tests.unit.cli.fake_server import FakeServer, Timing


@pytest.fixture
def bench(monkeypatch):
    """`tessera bench serve` at a fake server: its exit code."""

    def serve(server, *flags):
        monkeypatch.setattr("tessera.cli.bench.commands.connect", partial(connect, transport=server))
        return run(["bench", "serve", *flags])

    return serve


def test_serve_prints_and_writes_its_result(bench, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "openai's")
    server, file = FakeServer(), tmp_path / "result.json"
    flags = ("--num-prompts", "6", "--random-input-len", "8", "--output-len", "4", "--random-range-ratio", "0.5")
    assert bench(server, *flags, "--seed", "3", "--goodput", "ttft:60000", "--json", str(file), "--save-detailed") == 0
    output = capsys.readouterr()
    assert "Successful requests                           6" in output.out
    assert output.err == "requests ...\n"
    result = json.loads(file.read_text())
    assert (result["benchmark"], result["tessera"], result["model"]) == ("serve", __version__, "m")
    assert result["machine"]["cores"] >= 1
    assert result["settings"]["request_rate"] == "inf"
    assert result["settings"]["input_len"] == 8
    assert result["settings"]["goodput"] == ["ttft:60000"]
    assert not {"api_key", "json"} & set(result["settings"])
    assert (result["completed"], result["failed"]) == (6, 0)
    assert result["request_goodput"] == result["request_throughput"] > 0
    asked = server.asked[1:]  # the first was the warm-up
    assert sorted(len(body["prompt"]) for body in asked) == sorted(result["input_lens"])
    assert sorted(body["max_tokens"] for body in asked) == sorted(result["output_lens"])
    assert all(4 <= length <= 12 for length in result["input_lens"])
    assert server.headers[0]["authorization"] == "Bearer openai's"


def test_serve_draws_from_the_ordinary_tokens_of_a_tokenizer(bench, tmp_path):
    tokenizer = Tokenizer(WordLevel({letter: number for number, letter in enumerate("abcdefgh")}, unk_token="a"))
    tokenizer.add_special_tokens(["c", "<end>"])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    server = FakeServer()
    assert bench(server, "--num-prompts", "9", "--input-len", "40", "--tokenizer", str(tmp_path)) == 0
    assert {token for body in server.asked for token in body["prompt"]} == {0, 1, 3, 4, 5, 6, 7}
    server = FakeServer()
    assert bench(server, "--num-prompts", "9", "--input-len", "40", "--vocab-size", "4") == 0
    assert {token for body in server.asked for token in body["prompt"]} == {0, 1, 2, 3}


def test_a_tokenizer_that_is_not_there_is_one_line(bench, capsys):
    server = FakeServer()
    assert bench(server, "--tokenizer", "no/such/folder") == 3
    assert capsys.readouterr().err.startswith("error: There is no folder 'no/such/folder'.")
    assert server.asked == []


def test_a_run_with_failures_says_so_and_ends_with_their_code(bench, capsys):
    server = FakeServer([Timing(), Timing(), Timing(status=503, error="full")])
    assert bench(server, "--num-prompts", "3", "--input-len", "8", "--output-len", "2", "--max-concurrency", "1") == 1
    output = capsys.readouterr().out
    assert "Successful requests                           1" in output
    assert "full" in output


def test_a_warm_up_that_fails_ends_it_in_one_line(bench, capsys):
    server = FakeServer([Timing(status=400, error="Token id 7 is out of the vocabulary.")])
    assert bench(server, "--input-len", "8") == 2
    output = capsys.readouterr()
    assert (output.out, output.err) == ("", "error: Token id 7 is out of the vocabulary.\n")
    assert len(server.asked) == 1


@pytest.mark.parametrize(
    ("flags", "what"),
    [
        (["--input-len", "500"], "The longest requests have 564 tokens, but the model supports 512"),
        *((["--request-rate", rate], "--request-rate must be above 0") for rate in ("0", "-1", "nan")),
        *((["--burstiness", one], "--burstiness must be above 0 and below inf") for one in ("0", "inf")),
        (["--num-prompts", "0"], "--num-prompts must be from 1 to 1000000, got 0."),
        (["--num-prompts", "1000001"], "--num-prompts must be from 1 to 1000000"),
        (["--num-warmups", "-1"], "--num-warmups must be from 0"),
        (["--input-len", "0"], "--input-len must be from 1"),
        (["--random-output-len", "0"], "--output-len must be from 1"),
        (["--random-range-ratio", "-0.1"], "--random-range-ratio must be at least 0 and below 1, got -0.1."),
        (["--max-concurrency", "0"], "--max-concurrency must be from 1"),
        (["--timeout", "0"], "--timeout must be above 0"),
        (["--vocab-size", "0"], "--vocab-size must be from 1"),
        (["--tokenizer", "x", "--vocab-size", "9"], "has no meaning with --tokenizer"),
        (["--goodput", "x:1"], "--goodput 'x:1'"),
        (["--json", "no/such/folder/x.json"], "the folder does not exist"),
        (["--url", "nothing"], "--url 'nothing' is not an HTTP URL"),
    ],
)
def test_what_does_not_hold_is_one_line(bench, capsys, flags, what):
    server = FakeServer()
    assert bench(server, *flags) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert what in output.err
    assert output.err.count("\n") == 1
    assert server.asked == []


def test_the_figures_of_latency_by_hand():
    figures = latency_figures([1.0, 3.0, 2.0])
    assert figures["avg_latency"] == 2.0
    assert figures["latencies"] == [1.0, 3.0, 2.0]
    assert figures["percentiles"] == pytest.approx({"10": 1.2, "25": 1.5, "50": 2.0, "75": 2.5, "90": 2.8, "99": 2.98})


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["latency", "--batch-size", "0"], "--batch-size must be from 1"),
        (["latency", "--num-iters", "0"], "--num-iters must be from 1"),
        (["throughput", "--random-range-ratio", "1"], "--random-range-ratio must be at least 0 and below 1"),
        (["throughput", "--input-len", "1000", "--platform", "a.b:C"], "the model supports 1024"),
        (["latency", "--input-len", "1000", "--platform", "a.b:C"], "the model supports 1024"),
        (["latncy"], "Did you mean 'latency'?"),
    ],
)
def test_what_does_not_hold_before_an_engine_is_started(capsys, arguments, what):
    assert run(["bench", *arguments]) == 2
    assert what in capsys.readouterr().err
