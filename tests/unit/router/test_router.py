"""A router in front of servers that answer, refuse, break off and end."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tessera.cli.listen import bind, url_of
from tessera.cli.program import run as run_command
from tessera.cli.router import read_urls
from tessera.errors import ConfigError
from tessera.router import servers as servers_module
from tessera.router.metrics import merge
from tessera.router.prompts import BLOCK_BYTES, PromptBlocks
from tessera.router.run import run

CHAT = "/v1/chat/completions"
LONG = "the same opening of every prompt " * 40


class Upstream:
    """A server that answers by what it is told: "ok", "503", "cut" before an answer, "break" in the middle of one."""

    def __init__(self, name: str, behaviour: str = "ok") -> None:
        self.name, self.behaviour = name, behaviour
        self.requests: list[tuple[str, dict[str, str], bytes]] = []
        self.ready = True
        self.hold: asyncio.Event | None = None
        self.arrived = asyncio.Event()

    async def __aenter__(self) -> Upstream:
        self.server = await asyncio.start_server(self.serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self.server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self.server.close()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
                headers = {k.lower(): v for k, v in (line.split(": ", 1) for line in head[1:] if line)}
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                if not await self.answer(writer, head[0].split()[1], headers, body):
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def answer(self, writer, path, headers, body) -> bool:
        def whole(status: str, data: bytes) -> None:
            writer.write(b"HTTP/1.1 %s\r\ncontent-length: %d\r\nx-own: %s\r\n\r\n" % (
                status.encode(), len(data), self.name.encode()) + data)  # fmt: skip

        if path == "/readyz":
            whole("200 OK" if self.ready else "503 No", b"{}")
        elif path == "/metrics":
            whole("200 OK", METRICS[self.name].encode())
        else:
            self.requests.append((path, headers, body))
            self.arrived.set()
            if self.behaviour == "cut":
                return False
            if self.behaviour == "503":
                whole("503 Overloaded", b'{"error":{}}')
            elif self.behaviour == "ok" and b"stream" not in body:
                if self.hold is not None:
                    await self.hold.wait()
                whole("418 As It Is", self.name.encode())
            else:
                writer.write(
                    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
                )
                for number in range(3):
                    data = b"data: %d\n\n" % number
                    writer.write(b"%x\r\n%s\r\n" % (len(data), data))
                    await writer.drain()
                    await asyncio.sleep(0.02)
                    if self.behaviour == "break" and number == 1:
                        return False
                writer.write(b"0\r\n\r\n")
        await writer.drain()
        return True


PAGE = """# HELP t:requests_total Requests.
# TYPE t:requests_total counter
t:requests_total{kind="a"} %d
# HELP t:usage_perc Share.
# TYPE t:usage_perc gauge
t:usage_perc %s
# HELP t:cache_info Constant.
# TYPE t:cache_info gauge
t:cache_info{size="4"} 1
# HELP t:seconds Time.
# TYPE t:seconds histogram
t:seconds_bucket{le="1.0"} %d
t:seconds_bucket{le="+Inf"} 9
t:seconds_sum 2.5
t:seconds_count 9
"""
METRICS = {"a": PAGE % (3, 0.5, 4), "b": PAGE % (4, 0.25, 6), "c": PAGE % (0, 0, 0)}

Route = Callable[..., Awaitable[httpx.AsyncClient]]


@pytest.fixture
async def route(monkeypatch) -> AsyncIterator[Route]:
    """route(upstream, ...): a client of a router in front of them. Its attribute `urls` is what SIGHUP reads."""
    monkeypatch.setattr(servers_module, "CHECK_SECONDS", 0.05)
    clients, tasks = [], []

    async def begin(*upstreams: Upstream, sticky: bool = False) -> httpx.AsyncClient:
        urls = [one.url for one in upstreams]
        listener = bind("127.0.0.1", 0)
        work = run(listener, lambda: urls, prefix_tokens=10_000, sticky=sticky, drain=5)
        tasks.append(asyncio.create_task(work))
        client = httpx.AsyncClient(base_url=url_of(listener), timeout=20)
        client.urls = urls
        clients.append(client)
        for _ in range(200):
            await asyncio.sleep(0.02)
            page = (await client.get("/metrics")).text
            if all(f'router_ready{{server="{url}"}} 1' in page for url in urls):
                break
        return client

    yield begin
    for client in clients:
        await client.aclose()
    for task in tasks:
        if not task.done():
            os.kill(os.getpid(), signal.SIGTERM)
            assert await asyncio.wait_for(task, 10) == 0


def chat(text: str, **fields: object) -> dict[str, object]:
    return {"model": "m", "messages": [{"role": "user", "content": text}], **fields}


async def test_a_request_and_its_answer_pass_unchanged(route):
    async with Upstream("a") as a:
        client = await route(a)
        sent = {"Authorization": "Bearer k", "X-Request-Id": "r", "Connection": "close"}
        answer = await client.post(
            f"{CHAT}?x=1&y=%20",
            json=chat("hi"),
            headers=sent,
        )
        assert (answer.status_code, answer.text, answer.headers["x-own"]) == (418, "a", "a")
        ((path, headers, body),) = a.requests
        assert path == f"{CHAT}?x=1&y=%20"
        assert (headers["authorization"], headers["x-request-id"]) == ("Bearer k", "r")
        assert json.loads(body) == chat("hi")
        assert (await client.get("/v1/models")).text == "a"
        assert [(await client.get(path)).status_code for path in ("/livez", "/readyz", "/health")] == [200] * 3


async def test_streams_arrive_in_pieces(route):
    async with Upstream("a") as a:
        client = await route(a)
        async with client.stream("POST", CHAT, json=chat("hi", stream=True)) as answer:
            assert answer.headers["content-type"] == "text/event-stream"
            pieces = [piece async for piece in answer.aiter_raw()]
        assert b"".join(pieces) == b"data: 0\n\ndata: 1\n\ndata: 2\n\n"
        assert len(pieces) > 1


async def test_equal_openings_go_to_one_server_and_others_to_the_least_loaded(route):
    async with Upstream("a") as a, Upstream("b") as b, Upstream("c") as c:
        client = await route(a, b, c)
        same = [(await client.post(CHAT, json=chat(f"{LONG}{number}"))).text for number in range(6)]
        assert len(set(same)) == 1
        others = Counter([(await client.post(CHAT, json=chat(f"{number} {LONG}"))).text for number in range(9)])
        assert set(others) == {"a", "b", "c"}


@pytest.mark.parametrize("behaviour", ["cut", "503"])
async def test_what_one_server_fails_another_answers(route, behaviour):
    async with Upstream("a", behaviour) as a, Upstream("b") as b:
        client = await route(a, b)
        answers = [(await client.post(CHAT, json=chat(str(number)))).text for number in range(6)]
        assert answers == ["b"] * 6
        page = (await client.get("/metrics")).text
        assert f"tessera:router_retries_total {len(a.requests)}\n" in page
        assert a.requests
        assert f'tessera:router_failures_total{{server="{a.url}"}} {len(a.requests)}' in page


async def test_a_server_that_ends_is_left_out_and_taken_back(route):
    async with Upstream("a") as a, Upstream("b") as b:
        client = await route(a, b)
        a.ready = False
        await asyncio.sleep(0.3)
        assert {(await client.post(CHAT, json=chat(str(number)))).text for number in range(6)} == {"b"}
        assert not a.requests
        b.ready = False
        await asyncio.sleep(0.3)
        assert (await client.get("/readyz")).status_code == 503
        answer = await client.post(CHAT, json=chat("x"))
        assert (answer.status_code, answer.json()["error"]["type"]) == (503, "overloaded_error")
        a.ready = True
        await asyncio.sleep(0.3)
        assert (await client.post(CHAT, json=chat("x"))).text == "a"


async def test_an_answer_that_had_begun_ends_with_one_line(route):
    async with Upstream("a", "break") as a, Upstream("b") as b:
        a_only = await route(a)
        answer = await a_only.post(CHAT, json=chat("hi", stream=True))
        *whole, last, _ = answer.text.split("\n\n")
        assert whole == ["data: 0", "data: 1"]
        assert json.loads(last.removeprefix("data: "))["error"]["message"] == (
            "The server of this answer ended; send the request again."
        )
        assert not b.requests


async def test_a_client_that_leaves_ends_its_request_at_the_server(route):
    async with Upstream("a") as a:
        a.hold = asyncio.Event()
        client = await route(a)
        with pytest.raises(httpx.ReadTimeout):
            await client.post(CHAT, json=chat("hi"), timeout=0.2)
        for _ in range(100):
            await asyncio.sleep(0.02)
            if f'tessera:router_in_progress{{server="{a.url}"}} 0' in (await client.get("/metrics")).text:
                break
        else:
            raise AssertionError("the request is still in progress")


async def test_a_list_that_changes_drains_what_is_gone(route):
    async with Upstream("a") as a, Upstream("b") as b:
        a.hold = asyncio.Event()
        client = await route(a)
        held = asyncio.create_task(client.post(CHAT, json=chat("slow")))
        await asyncio.wait_for(a.arrived.wait(), 10)
        client.urls[:] = [b.url]
        os.kill(os.getpid(), signal.SIGHUP)
        await asyncio.sleep(0.4)
        assert {(await client.post(CHAT, json=chat(str(number)))).text for number in range(4)} == {"b"}
        assert a.url in (await client.get("/metrics")).text
        a.hold.set()
        assert (await held).text == "a", "it ends what it had begun"
        assert a.url not in (await client.get("/metrics")).text


async def test_metrics_are_sums_and_means_of_shares(route):
    families = {family.name: family for family in text_string_to_metric_families(merge([METRICS["a"], METRICS["b"]]))}
    values = {(one.name, *one.labels.values()): one.value for family in families.values() for one in family.samples}
    assert values[("t:requests_total", "a")] == 7
    assert values[("t:usage_perc",)] == 0.375
    assert values[("t:cache_info", "4")] == 1
    assert values[("t:seconds_bucket", "1.0")] == 10
    assert (values[("t:seconds_sum",)], values[("t:seconds_count",)]) == (5, 18)
    async with Upstream("a") as a, Upstream("b") as b:
        client = await route(a, b)
        assert 't:requests_total{kind="a"} 7\n' in (await client.get("/metrics")).text


def test_blocks_of_a_body():
    blocks = PromptBlocks(sticky=False)

    def read(text: str, key: bytes = b"", **fields: object) -> list[bytes]:
        return list(blocks.read(json.dumps(chat(text, **fields)).encode(), key))

    first = read("a" * 4 * BLOCK_BYTES)
    assert len(first) == 4
    assert read("a" * 3 * BLOCK_BYTES + "b" * BLOCK_BYTES)[:3] == first[:3]
    assert not set(first) & set(read("a" * 4 * BLOCK_BYTES, b"another key"))
    assert not set(first) & set(read("a" * 4 * BLOCK_BYTES, cache_salt="s"))
    assert not set(first) & set(read("a" * 4 * BLOCK_BYTES, model="n"))
    assert blocks.read(b"no JSON", b"") == ()
    assert blocks.read(b"[1]", b"") == ()
    sticky = PromptBlocks(sticky=True)
    one, two = (list(sticky.read(json.dumps(chat(text, cache_salt="s")).encode(), b"")) for text in ("x", "y"))
    assert one == two
    assert len(one) == 1


@pytest.mark.parametrize(
    ("urls", "file", "words"),
    [
        ((), None, "Name the servers either as arguments"),
        (("localhost:8000",), None, "'localhost:8000' is not the URL of a server, such as http://host:8000."),
        (("http://a:1/v1",), None, "'http://a:1/v1' is not the URL of a server"),
        ((), "/no/such/file", "--servers-file '/no/such/file' cannot be read as text."),
    ],
)
def test_servers_that_cannot_be_are_one_line(urls, file, words):
    with pytest.raises(ConfigError) as error:
        read_urls(urls, file)
    assert error.value.message.startswith(words)
    assert "\n" not in error.value.message


def test_a_file_of_servers(tmp_path):
    file = tmp_path / "servers"
    file.write_text("# ours\nhttp://a:1/\n\nhttps://b:2\nhttp://a:1\n")
    assert read_urls((), str(file)) == ["http://a:1", "https://b:2"]
    file.write_text("#\n")
    with pytest.raises(ConfigError, match="names no server"):
        read_urls((), str(file))


def test_the_command_says_what_is_wrong(capsys):
    assert run_command(["router"]) == 2
    assert "Name the servers either as arguments" in capsys.readouterr().err
