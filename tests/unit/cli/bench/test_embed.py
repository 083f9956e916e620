"""`tessera bench embed` from its flags to what it sends, prints and writes, with a server that is not there."""

from __future__ import annotations

import asyncio
import json
from functools import partial

import httpx
import pytest

from tessera.cli.bench.drive import Driver
from tessera.cli.bench.embeddings import EmbeddingExchange, EmbeddingJob, repeat_jobs
from tessera.cli.bench.results import embedding_details, embedding_figures, show_embedding
from tessera.cli.client.remote import connect
from tessera.cli.program import run
from tests.unit.cli.fake_server import URL, VirtualTime


class EmbeddingServer(httpx.AsyncBaseTransport):
    """Counts a token for each character or token id. seconds: what each request takes. asked: the bodies. changes: of
    the answer."""

    def __init__(self, *seconds, status=200, **changes):
        self.seconds = seconds or (0.0,)
        self.status, self.changes = status, changes
        self.asked = []

    async def handle_async_request(self, request):
        if request.url.path.endswith("/models"):
            return httpx.Response(200, json={"data": [{"id": "m", "max_model_len": 512}]})
        assert request.url.path == "/v1/embeddings"
        body = json.loads(request.content)
        self.asked.append(body)
        await asyncio.sleep(self.seconds[min(len(self.asked), len(self.seconds)) - 1])
        data = [{"index": index, "embedding": "AACAPw=="} for index in range(len(body["input"]))]
        answer = {"data": data, "usage": {"prompt_tokens": sum(map(len, body["input"]))}, **self.changes}
        return httpx.Response(self.status, json=answer)


def driven(server, jobs, **settings):
    """(records, seconds) of jobs that are all sent at once."""

    async def drive():
        clock = asyncio.get_running_loop().time
        async with connect(URL, api_key=None, model_name=None, transport=server) as client:
            return await Driver(EmbeddingExchange(client, {}), clock=clock, **settings).run(jobs, [0.0] * len(jobs))

    with asyncio.Runner(loop_factory=VirtualTime) as runner:
        return runner.run(drive())


@pytest.fixture
def bench(monkeypatch):
    """`tessera bench embed` at such a server: its exit code."""

    def embed(server, *flags):
        monkeypatch.setattr("tessera.cli.bench.embed.connect", partial(connect, transport=server))
        return run(["bench", "embed", "--url", URL, *flags])

    return embed


def test_every_figure_by_hand():
    """Three requests, two at once: the third is sent when the first ends, at 1 s."""
    jobs = [EmbeddingJob(["abc", "de"]), EmbeddingJob([[1, 2, 3]]), EmbeddingJob(["f"])]
    records, seconds = driven(EmbeddingServer(1.0, 4.0, 2.0), jobs, max_concurrency=2)
    figures = embedding_figures(records, seconds)
    expected = {
        "duration": 4.0, "completed": 3, "failed": 0, "total_texts": 4, "total_input_tokens": 9,
        "request_throughput": 3 / 4, "text_throughput": 4 / 4, "total_token_throughput": 9 / 4,
        "max_concurrent_requests": 2,
        # 1, 4 and 2 s.
        "mean_e2el_ms": 7000 / 3, "median_e2el_ms": 2000.0, "p95_e2el_ms": 3800.0, "p99_e2el_ms": 3960.0,
    }  # fmt: skip
    assert {name: figures[name] for name in expected} == pytest.approx(expected)
    assert embedding_details(records) == {
        "input_lens": [5, 3, 1], "num_texts": [2, 1, 1], "e2els": pytest.approx([1.0, 4.0, 2.0]), "reasons": [None] * 3,
    }  # fmt: skip


def test_failures_are_counted_and_named_and_in_no_time():
    records, seconds = driven(EmbeddingServer(1.0, 9.0), [EmbeddingJob(["abc"]), EmbeddingJob(["d"])], timeout=2.0)
    figures = embedding_figures(records, seconds)
    assert (figures["completed"], figures["failed"], figures["total_texts"], figures["p99_e2el_ms"]) == (1, 1, 1, 1000)
    assert "The answer was not complete within 2 s." in show_embedding(figures)
    assert embedding_details(records)["e2els"] == [1.0, None]


def test_a_server_that_counts_no_tokens_embeds_those_that_were_sent():
    records, _ = driven(EmbeddingServer(usage=None), [EmbeddingJob([[1, 2, 3]])])
    assert records[0].prompt_len == 3


def test_random_prompts_in_batches(bench, tmp_path, capsys):
    server, file = EmbeddingServer(), tmp_path / "result.json"
    work = ("--num-prompts", "7", "--random-batch-size", "3", "--input-len", "8", "--vocab-size", "5")
    assert bench(server, *work, "--num-warmups", "2", "--json", str(file), "--save-detailed") == 0
    shown = {
        label.strip(): text
        for label, _, text in (line.rpartition(" ") for line in capsys.readouterr().out.splitlines())
    }
    assert (shown["Successful requests"], shown["Total texts"], shown["Total input tokens"]) == ("3", "7", "56")
    assert [len(body["input"]) for body in server.asked] == [3, 3, 3, 3, 1]
    prompts = [prompt for body in server.asked for prompt in body["input"]]
    assert {len(prompt) for prompt in prompts} == {8}
    assert {token for prompt in prompts for token in prompt} <= set(range(5))
    assert len({tuple(prompt) for prompt in prompts}) == len(prompts)
    assert all(body["encoding_format"] == "base64" and "truncate_prompt_tokens" not in body for body in server.asked)
    result = json.loads(file.read_text())
    assert (result["benchmark"], result["model"], result["completed"]) == ("embed", "m", 3)
    assert result["input_lens"] == [24, 24, 8]
    assert (result["settings"]["batch_size"], result["settings"]["url"]) == (3, URL)


def test_the_lines_of_a_file_again_and_again(bench, tmp_path):
    (tmp_path / "texts").write_text("cat\nrain\nsnow\n")
    server = EmbeddingServer()
    flags = ("--num-prompts", "5", "--batch-size", "2", "--truncate-prompt-tokens", "-1", "--encoding-format", "float")
    assert bench(server, "--file", str(tmp_path / "texts"), *flags, "--num-warmups", "0") == 0
    assert [body["input"] for body in server.asked] == [["cat", "rain"], ["snow", "cat"], ["rain"]]
    assert all(body["truncate_prompt_tokens"] == -1 and body["encoding_format"] == "float" for body in server.asked)
    assert repeat_jobs(["a"], 0, 1) == []


def test_an_engine_of_its_own_gets_no_more_than_it_has_room_for(monkeypatch):
    """Its ids are those of the model, and each request takes as many places as it has texts."""
    server, configs = EmbeddingServer(0.01), []

    class Crowd(httpx.AsyncBaseTransport):
        running = most = 0

        async def handle_async_request(self, request):
            self.running += 1
            self.most = max(self.most, self.running)
            try:
                return await server.handle_async_request(request)
            finally:
                self.running -= 1

    def start(config):
        configs.append(config)
        return connect(URL, api_key=None, model_name=None, transport=crowd)

    crowd = Crowd()
    monkeypatch.setattr("tessera.cli.bench.embed.start_embedder", start)
    room = ("--max-num-seqs", "2", "--max-waiting", "4")
    assert run(["bench", "embed", *room, "--num-prompts", "18", "--batch-size", "3", "--input-len", "40"]) == 0
    assert crowd.most == 2
    (config,) = configs
    assert config.model.pooler.dimensions == 192
    assert (
        1000 < max(token for body in server.asked for one in body["input"] for token in one) < config.model.vocab_size
    )


@pytest.mark.parametrize(
    ("flags", "what"),
    [
        (
            ["--input-len", "600"],
            "The longest requests have 600 tokens, but the model supports 512",
        ),
        (["--file", "no/such/file"], "--file 'no/such/file' cannot be read"),
        (["--file", "x", "--input-len", "8"], "--input-len is for random prompts; remove it, or --file."),
        (["--batch-size", "0"], "--batch-size must be from 1 to 2048"),
        (["--truncate-prompt-tokens", "-2"], "--truncate-prompt-tokens must be at least -1"),
        (["--dtype", "float32"], "--dtype is for a model that runs here; remove it, or --url."),
        (["model"], "Give a MODEL to run here or the --url of a server, not both"),
        (["--json", "no/such/folder/x.json"], "the folder does not exist"),
    ],
)
def test_what_does_not_hold_is_one_line(bench, capsys, flags, what):
    server = EmbeddingServer()
    assert bench(server, *flags) == 2
    output = capsys.readouterr()
    assert (output.out, output.err.count("\n"), server.asked) == ("", 1, [])
    assert what in output.err


@pytest.mark.parametrize(
    ("server", "code", "what"),
    [
        (EmbeddingServer(status=400, error={"message": "This model does not embed."}), 2, "This model does not embed."),
        (EmbeddingServer(data=[]), 8, "has 0 embeddings for 1 texts"),
        (EmbeddingServer(data=3), 8, "is not a list of embeddings"),
    ],
)
def test_a_warm_up_that_fails_ends_it_in_one_line(bench, capsys, server, code, what):
    assert bench(server, "--input-len", "8") == code
    output = capsys.readouterr()
    assert (output.out, len(server.asked)) == ("", 1)
    assert what in output.err
