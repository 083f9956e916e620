"""`tessera embed` from its flags to what it sends and prints, with a server that is not there."""

from __future__ import annotations

import io
import json
from functools import partial

import httpx
import numpy as np
import pytest

from tessera.cli.client.remote import connect
from tessera.cli.embed.similarity import pair_table
from tessera.cli.program import run
from tests.unit.cli.fake_server import URL

VECTORS = {"cat": [1.0, 0.0], "kitten": [0.8, 0.6], "rain": [0.0, 2.0]}


class EmbeddingServer(httpx.MockTransport):
    """Vectors of known texts, in an order that is not that of the request. asked: the bodies."""

    def __init__(self, status=200, answer=None):
        super().__init__(self.respond)
        self.asked = []
        self.status, self.answer = status, answer

    def respond(self, request):
        if request.url.path.endswith("/models"):
            return httpx.Response(200, json={"data": [{"id": "m"}]})
        assert request.url.path == "/v1/embeddings"
        body = json.loads(request.content)
        self.asked.append(body)
        data = [{"index": index, "embedding": VECTORS[text]} for index, text in enumerate(body["input"])]
        answer = {"data": data[::-1], "usage": {"prompt_tokens": 3}} if self.answer is None else self.answer
        return httpx.Response(self.status, json=answer)


class Tty(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def embed(monkeypatch):
    """`tessera embed` at such a server: its exit code."""
    monkeypatch.setattr("sys.stdin", Tty())

    def embed(server, *arguments):
        monkeypatch.setattr("tessera.cli.embed.commands.connect", partial(connect, transport=server))
        return run(["embed", "--url", URL, *arguments])

    return embed


def rows(text):
    return [line.split() for line in text.splitlines()]


def test_a_line_for_each_text_in_its_order(embed, capsys):
    server = EmbeddingServer()
    assert embed(server, "cat", "rain", "kitten", "--batch-size", "2", "--dimensions", "2", "--prompt-name", "d") == 0
    output = capsys.readouterr()
    lines = [json.loads(line) for line in output.out.splitlines()]
    assert lines == [
        {"index": index, "text": text, "embedding": VECTORS[text]}
        for index, text in enumerate(["cat", "rain", "kitten"])
    ]
    assert output.err == "texts ...\n"
    assert [body["input"] for body in server.asked] == [["cat", "rain"], ["kitten"]]
    assert all(body["dimensions"] == 2 and body["prompt_name"] == "d" for body in server.asked)


@pytest.mark.parametrize("source", ["stdin", "file"])
def test_texts_are_the_lines_of_a_file(embed, capsys, monkeypatch, tmp_path, source):
    (tmp_path / "texts").write_text("cat\nrain\n")
    monkeypatch.setattr("sys.stdin", io.StringIO("cat\nrain\n"))
    flags = ["--file", str(tmp_path / "texts")] if source == "file" else []
    assert embed(EmbeddingServer(), *flags, "--output", "json") == 0
    assert [item["text"] for item in json.loads(capsys.readouterr().out)] == ["cat", "rain"]


def test_a_terminal_has_the_cosine_of_each_pair(embed, monkeypatch):
    monkeypatch.setattr("sys.stdout", shown := Tty())
    assert embed(EmbeddingServer(), "cat", "rain", "kitten") == 0
    assert rows(shown.getvalue())[1:] == [
        ["0.8000", "cat", "kitten"],
        ["0.6000", "rain", "kitten"],
        ["0.0000", "cat", "rain"],
    ]


def test_a_query_orders_the_texts(embed, capsys):
    server = EmbeddingServer()
    flags = ("--query", "cat", "--query-prompt-name", "query", "--prompt-name", "document")
    assert embed(server, "rain", "kitten", *flags, "--output", "table") == 0
    assert rows(capsys.readouterr().out)[1:] == [["0.8000", "kitten"], ["0.0000", "rain"]]
    assert [body["prompt_name"] for body in server.asked] == ["query", "document"]
    assert embed(server, "rain", "kitten", *flags) == 0
    (first, _) = map(json.loads, capsys.readouterr().out.splitlines())
    assert first == {"index": 1, "text": "kitten", "similarity": 0.8}


def test_a_long_table_is_cut_and_its_texts_are_one_line_each():
    texts = [f"{number}\n\x1b[31m" + "x" * 100 for number in range(12)]
    lines = pair_table(texts, np.eye(12)).splitlines()
    assert len(lines) == 52
    assert lines[-1] == "... and 16 pairs that are less similar"
    assert "\x1b" not in lines[1]
    assert len(lines[1]) < 100


@pytest.mark.parametrize(
    ("arguments", "code", "what"),
    [
        ([], 2, "There is no input: give texts, a --file, or pipe a text on each line to stdin."),
        (["cat", " "], 2, "Text 2 of 2 is empty; remove it."),
        (["cat", "--file", "x"], 2, "Give texts or a --file with one on each line, not both."),
        (["--file", "no/such/file"], 2, "--file 'no/such/file' cannot be read: No such file or directory."),
        (["cat", "--model", "m"], 2, "Give a --model to run here or the --url of a server, not both"),
        (["cat", "--dtype", "float32"], 2, "--dtype is for a model that runs here; remove it, or --url."),
        (["cat", "--batch-size", "4096"], 2, "--batch-size must be from 1 to 2048"),
        (["cat"] * 1001 + ["--output", "table"], 2, "A table compares at most 1000 texts with each other, got 1001"),
    ],
)
def test_what_does_not_hold_is_one_line(embed, capsys, arguments, code, what):
    server = EmbeddingServer()
    assert embed(server, *arguments) == code
    output = capsys.readouterr()
    assert (output.out, output.err.count("\n"), server.asked) == ("", 1, [])
    assert what in output.err


@pytest.mark.parametrize(
    ("server", "code", "what"),
    [
        (EmbeddingServer(400, {"error": {"message": "This model does not embed."}}), 2, "This model does not embed."),
        (EmbeddingServer(answer={"data": []}), 8, "does not have an embedding of one length for each of 1 texts"),
        (EmbeddingServer(answer=[]), 8, "is not a list of embeddings"),
    ],
)
def test_what_a_server_answers_instead_is_one_line(embed, capsys, server, code, what):
    assert embed(server, "cat") == code
    output = capsys.readouterr()
    assert (output.out, output.err.count("\n")) == ("", 1)
    assert what in output.err


def test_no_server_is_one_line(capsys):
    assert run(["embed", "--url", "http://127.0.0.1:1", "cat"]) == 8
    assert capsys.readouterr().err.startswith("error: Cannot connect to http://127.0.0.1:1/v1")
