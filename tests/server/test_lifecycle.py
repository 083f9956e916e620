"""Connections and ends: clients that go away, signals, an engine that dies. On a socket, as it is served."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import time
from pathlib import Path

import httpx
import pytest

from tessera.cli.listen import bind, open_to_clients
from tessera.errors import EXIT_CODES, ModelError
from tessera.server.serve import serve
from tessera.server.settings import SERVER_FLAGS, Limits, ServerSettings
from tests.server.conftest import on_socket
from tests.server.fake_engine import MODEL, FakeEngine, Script
from tests.server.sse import data_of, read_stream

STAYING_UP = Path(__file__).parents[2] / "docs/decisions/staying-up.md"
CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}]}
STREAM = {**CHAT, "stream": True}
ENDLESS = Script(pieces=["x"] * 400, delay=0.01)


async def until(condition, seconds=120.0):
    """Waits for what must come soon; the seconds it took."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < seconds, "it did not come"
        await asyncio.sleep(0.002)
    return time.monotonic() - began


def client(server, **options):
    return httpx.AsyncClient(base_url=server.url, timeout=60, **options)


LEAVING = httpx.Timeout(30, read=0.5)
"""Of a client that connects, however busy the machine is, and then does not wait for an answer."""


async def first_line(response):
    return await anext(response.aiter_lines())


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_a_client_that_leaves_its_stream_ends_the_request_within_a_step(path):
    engine = FakeEngine(script=ENDLESS)
    body = STREAM if "chat" in path else {"model": MODEL, "prompt": ["a", "b"], "stream": True, "max_tokens": 300}
    async with on_socket(engine) as server, client(server) as http:
        async with http.stream("POST", path, json=body) as response:
            assert (await first_line(response)).startswith("data: ")
            assert engine.running
        steps = engine.steps
        await until(lambda: not engine.running)
        assert engine.steps - steps <= 6
        assert len(engine.aborted) == len(engine.calls)


@pytest.mark.parametrize("hang_at", [0, 2])
async def test_a_client_that_leaves_before_its_whole_answer_ends_the_request(hang_at):
    engine = FakeEngine(script=Script(hang_at=hang_at))
    async with on_socket(engine) as server, client(server) as http:
        for body in (CHAT, STREAM):
            with contextlib.suppress(httpx.ReadTimeout):
                await http.post("/v1/chat/completions", json=body, timeout=LEAVING)
        await until(lambda: not engine.running)
        assert len(engine.aborted) == 2
        engine.script = Script()
        assert (await http.post("/v1/chat/completions", json=CHAT)).status_code == 200


async def test_many_clients_that_leave_leave_nothing_behind():
    engine = FakeEngine(script=ENDLESS)
    async with on_socket(engine) as server, client(server) as http:
        assert (await http.get("/health")).status_code == 200
        before = len(asyncio.all_tasks())

        async def visit():
            with contextlib.suppress(httpx.ReadTimeout):
                async with http.stream("POST", "/v1/chat/completions", json=STREAM, timeout=LEAVING) as response:
                    await first_line(response)

        await asyncio.gather(*(visit() for _ in range(50)))
        await until(lambda: not engine.running)
        await until(lambda: len(asyncio.all_tasks()) <= before)
        assert len(engine.aborted) == 50


async def test_a_body_that_never_arrives_is_given_up():
    settings = ServerSettings(limits=Limits(body_seconds=0.1), drain_seconds=0.1)
    async with on_socket(FakeEngine(), settings) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{"
        )
        answer = await asyncio.wait_for(reader.read(200), 20)
        assert answer.startswith(b"HTTP/1.1 408 ")
        writer.close()


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_body_over_its_limit_is_answered_while_it_is_sent(chunked):
    settings = ServerSettings(limits=Limits(body_bytes=2**20), drain_seconds=0.1)

    async def pieces():
        for _ in range(64):
            yield b"x" * 2**16

    content = pieces() if chunked else b"x" * 2**22
    async with on_socket(FakeEngine(), settings) as server, client(server) as http:
        headers = {"Content-Type": "application/json"}
        response = await http.post("/v1/completions", content=content, headers=headers)
        assert response.status_code == 413
        assert set(response.json()["error"]) == {"message", "type", "param", "code"}


@pytest.mark.parametrize("where", ["header", "headers", "path"])
async def test_a_huge_head_is_a_431(where):
    async with on_socket(FakeEngine()) as server, client(server) as http:
        headers = (
            {"x": "y" * 100_000}
            if where == "header"
            else {f"x{i}": "y" * 99 for i in range(1000 * (where == "headers"))}
        )
        path = "/v1/models?" + "x" * (60_000 if where != "path" else 2**16 + 1)
        if where == "path":
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            assert (await reader.read(100)).startswith(b"HTTP/1.1 431 ")
            writer.close()
        else:
            response = await http.get("/v1/models", headers=headers)
            assert response.status_code == 431
            assert set(response.json()["error"]) == {"message", "type", "param", "code"}


async def test_what_is_no_http_is_a_400():
    async with on_socket(FakeEngine()) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"\x80\x04\x95 what is this\r\n\r\n")
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 400 ")
        assert set(json.loads(body)["error"]) == {"message", "type", "param", "code"}
        writer.close()


PIPELINED = (
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
)


@pytest.mark.parametrize("then", ["stream", "models"])
async def test_a_client_that_leaves_with_requests_in_its_pipeline_ends_the_one_in_progress(then, caplog):
    """Those behind it never begin."""
    engine = FakeEngine(script=Script(hang_at=2))
    body = json.dumps(STREAM).encode()
    stream = PIPELINED % (len(body), body)
    later = stream if then == "stream" else b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n"
    async with on_socket(engine) as server, client(server) as http:
        _, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(stream + later * 3)
        await until(lambda: engine.running)
        writer.transport.abort()
        await until(lambda: not engine.running)
        assert (await http.get("/livez")).status_code == 200
        assert len(engine.calls) == 1
    assert not [record for record in caplog.records if record.exc_info]


# ---- the engine dies ------------------------------------------------------------------------------------------


async def test_an_engine_that_dies_ends_streams_with_an_error_and_the_server_with_4():
    engine = FakeEngine(script=ENDLESS)
    async with on_socket(engine) as server, client(server) as http:
        async with http.stream("POST", "/v1/chat/completions", json=STREAM) as response:
            lines = response.aiter_lines()
            assert await anext(lines)
            died = time.monotonic()
            engine.die()
            rest = [line async for line in lines]
            assert time.monotonic() - died < 20
        assert await asyncio.wait_for(server.task, 20) == 4
        assert rest[-2:] == ["data: [DONE]", ""]
        error = json.loads(rest[-4].removeprefix("data: "))["error"]
        assert error == {"message": "The engine is not running.", "type": "engine_error", "param": None, "code": None}
        with pytest.raises(httpx.TransportError):
            await http.get("/health")


@pytest.mark.parametrize("body", [CHAT, STREAM])
async def test_an_engine_that_dies_before_the_first_token_is_a_503(body):
    engine = FakeEngine(script=Script(hang_at=0))
    async with on_socket(engine) as server, client(server) as http:
        waiting = asyncio.create_task(http.post("/v1/chat/completions", json=body))
        await until(lambda: engine.running)
        engine.die()
        response = await waiting
        assert response.status_code == 503
        assert response.json()["error"]["type"] == "engine_error"
        assert await asyncio.wait_for(server.task, 20) == 4


async def test_a_client_that_reads_nothing_does_not_hold_up_the_end():
    engine = FakeEngine(script=Script(pieces=["x" * 100_000] * 400))
    async with on_socket(engine) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port, limit=1024)
        body = json.dumps(STREAM).encode()
        head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        writer.write(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        await reader.read(10)
        engine.die()
        assert await asyncio.wait_for(server.task, 20) == 4
        writer.close()


# ---- the model loads -------------------------------------------------------------------------------------------


async def test_while_the_model_loads_it_lives_and_is_not_ready():
    loading = asyncio.Event()
    async with on_socket(FakeEngine(), loading=loading) as server, client(server) as http:
        statuses = [(await http.get(path)).status_code for path in ("/livez", "/readyz", "/health")]
        assert statuses == [200, 503, 503]
        assert (await http.get("/readyz")).json() == {"status": "starting"}
        response = await http.post("/v1/chat/completions", json=CHAT)
        assert (response.status_code, response.headers["retry-after"]) == (503, "1")
        assert set(response.json()["error"]) == {"message", "type", "param", "code"}
        loading.set()
        async with asyncio.timeout(20):
            while (await http.get("/readyz")).status_code != 200:  # noqa: ASYNC110  (the server's doing)
                await asyncio.sleep(0.01)
        assert (await http.post("/v1/chat/completions", json=CHAT)).status_code == 200


async def test_while_the_model_loads_each_api_says_so_in_its_own_form():
    settings = ServerSettings(drain_seconds=1.0, root_path="/llm")
    message = "The model is still loading; try again."
    in_anthropics = {"type": "error", "error": {"type": "overloaded_error", "message": message}}
    async with on_socket(FakeEngine(), settings, loading=asyncio.Event()) as server, client(server) as http:
        for prefix in ("", "/llm"):
            for path, headers, body in (
                ("/v1/messages", {}, in_anthropics),
                ("/v1/messages/count_tokens", {}, in_anthropics),
                ("/v1/models", {"anthropic-version": "2023-06-01"}, in_anthropics),
                ("/api/chat", {}, {"error": message}),
            ):
                response = await http.post(prefix + path, headers=headers, json=CHAT)
                assert (response.status_code, response.headers["retry-after"]) == (503, "1")
                assert response.json() == body, path
            response = await http.post(f"{prefix}/v1/responses", json=CHAT)
            assert response.json()["error"]["message"] == message
            assert (await http.get(f"{prefix}/livez")).status_code == 200


@pytest.mark.parametrize("kind", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
async def test_a_signal_while_the_model_loads_ends_the_start(kind):
    async with on_socket(FakeEngine(), loading=asyncio.Event()) as server, client(server) as http:
        assert (await http.get("/livez")).status_code == 200
        os.kill(os.getpid(), kind)
        assert await asyncio.wait_for(server.task, 20) == 0


async def test_what_a_start_raises_is_raised_once_the_port_is_closed():
    async def failing():
        await asyncio.sleep(0.1)
        raise ModelError("There is no such model.")

    listener = socket.create_server(("127.0.0.1", 0))
    with pytest.raises(ModelError):
        await serve(failing(), listener, ServerSettings())
    assert listener.fileno() == -1


# ---- signals --------------------------------------------------------------------------------------------------


async def test_sigterm_takes_no_new_connections_and_lets_requests_finish():
    engine = FakeEngine(script=Script(hang_at=2))
    async with on_socket(engine, ServerSettings(drain_seconds=1)) as server, client(server) as http:
        asking = asyncio.create_task(http.post("/v1/chat/completions", json=STREAM))
        await until(lambda: engine.running)
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.sleep(0.25)
        with pytest.raises(httpx.ConnectError):
            async with client(server) as late:
                await late.get("/health")
        assert not server.task.done()
        assert (await asking).status_code == 200
        assert await asyncio.wait_for(server.task, 20) == 0
    assert engine.health.alive is False


@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGHUP])
async def test_a_stream_is_whole_when_it_ends_within_the_drain(kind):
    engine = FakeEngine(script=Script(pieces=["x"] * 30, delay=0.01))
    async with on_socket(engine, ServerSettings(drain_seconds=10)) as server, client(server) as http:
        asking = asyncio.create_task(http.post("/v1/chat/completions", json=STREAM))
        await until(lambda: engine.steps > 2)
        os.kill(os.getpid(), kind)
        chunks = read_stream((await asking).text)
        assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
        assert await asyncio.wait_for(server.task, 20) == 0


async def test_the_signals_that_drain_are_documented_and_nohup_keeps_its_own():
    drain = next(flag for flag in SERVER_FLAGS if flag.name == "shutdown_timeout").help
    for page in (drain, EXIT_CODES[0], STAYING_UP.read_text(encoding="utf-8")):
        assert all(name in page for name in ("SIGTERM", "SIGHUP", "Ctrl-C"))
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        async with on_socket(FakeEngine()) as server, client(server) as http:
            os.kill(os.getpid(), signal.SIGHUP)
            await asyncio.sleep(0.1)
            assert (await http.get("/livez")).status_code == 200
    finally:
        signal.signal(signal.SIGHUP, before)


async def test_what_outlasts_the_drain_is_cut_off_with_an_error_and_exits_0():
    engine = FakeEngine(script=ENDLESS)
    async with on_socket(engine, ServerSettings(drain_seconds=0.3)) as server, client(server) as http:
        asking = asyncio.create_task(http.post("/v1/chat/completions", json=STREAM))
        await until(lambda: engine.steps > 2)
        os.kill(os.getpid(), signal.SIGTERM)
        events = data_of((await asking).text)
        assert "error" in json.loads(events[-2])
        assert events[-1] == "[DONE]"
        assert await asyncio.wait_for(server.task, 20) == 0


async def test_a_second_signal_cuts_off_at_once_and_exits_1():
    engine = FakeEngine(script=ENDLESS)
    async with on_socket(engine, ServerSettings(drain_seconds=60)) as server, client(server) as http:
        asking = asyncio.create_task(http.post("/v1/chat/completions", json=STREAM))
        await until(lambda: engine.steps > 2)
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.sleep(0.2)
        assert not server.task.done()
        began = time.monotonic()
        os.kill(os.getpid(), signal.SIGTERM)
        assert await asyncio.wait_for(server.task, 20) == 1
        assert time.monotonic() - began < 20
        assert data_of((await asking).text)[-1] == "[DONE]"


async def test_an_idle_connection_does_not_hold_up_the_end():
    async with on_socket(FakeEngine(), ServerSettings(drain_seconds=60)) as server, client(server) as http:
        assert (await http.get("/health")).status_code == 200
        began = time.monotonic()
        os.kill(os.getpid(), signal.SIGTERM)
        assert await asyncio.wait_for(server.task, 20) == 0
        assert time.monotonic() - began < 20


async def test_sigterm_leaves_time_to_be_taken_out_of_service():
    engine = FakeEngine()
    settings = ServerSettings(shutdown_delay_seconds=4.0, drain_seconds=1)
    async with on_socket(engine, settings) as server, client(server) as http:
        assert (await http.get("/readyz")).status_code == 200
        began = time.monotonic()
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.sleep(0.2)
        for path in ("/readyz", "/health", "/ping"):
            answer = await http.get(path)
            assert (answer.status_code, answer.json()) == (503, {"status": "shutting down"})
            assert answer.headers["connection"] == "close"
        assert (await http.get("/livez")).status_code == 200
        async with client(server) as late:
            answer = await late.post("/v1/chat/completions", json=STREAM)
        assert (answer.status_code, answer.headers["connection"]) == (200, "close")
        assert read_stream(answer.text)[-1]["choices"][0]["finish_reason"] == "stop"
        assert time.monotonic() - began < 4
        assert await asyncio.wait_for(server.task, 20) == 0
        assert time.monotonic() - began > 4


async def test_a_second_signal_ends_the_delay_and_others_have_none():
    for kinds, code in (((signal.SIGTERM, signal.SIGTERM), 1), ((signal.SIGINT,), 0)):
        async with on_socket(FakeEngine(), ServerSettings(shutdown_delay_seconds=60, drain_seconds=60)) as server:
            await asyncio.sleep(0.1)
            for kind in kinds:
                os.kill(os.getpid(), kind)
                await asyncio.sleep(0.1)
            assert await asyncio.wait_for(server.task, 20) == code


async def test_who_is_connected_when_the_end_comes_is_answered():
    """The loop stands still while SIGTERM and then connections come: the system makes them, and clients send."""
    async with on_socket(FakeEngine(), ServerSettings(drain_seconds=5)) as server, client(server) as http:
        assert (await http.get("/readyz")).status_code == 200
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.sleep(0.05)
        waiting, silent = [], []
        for number in range(100):
            stream = socket.create_connection(("127.0.0.1", server.port))
            if number % 2:
                stream.sendall(b"GET /version HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            (waiting if number % 2 else silent).append(stream)
        await asyncio.sleep(0.25)
        for stream in silent:  # the first request of a proxy's connection may come a little later
            stream.sendall(b"GET /version HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        for stream in (*waiting, *silent):
            with stream:
                assert (await asyncio.to_thread(stream.recv, 100)).startswith(b"HTTP/1.1 200")
        assert await asyncio.wait_for(server.task, 20) == 0


async def test_a_connection_that_stays_silent_holds_up_the_end_for_a_second():
    async with on_socket(FakeEngine(), ServerSettings(drain_seconds=60)) as server:
        with socket.create_connection(("127.0.0.1", server.port)):
            await asyncio.sleep(0.1)
            began = time.monotonic()
            os.kill(os.getpid(), signal.SIGTERM)
            assert await asyncio.wait_for(server.task, 20) == 0
            assert time.monotonic() - began < 20


async def test_a_socket_that_listens_when_the_start_is_over():
    listener = bind("127.0.0.1", 0, None)
    loading = asyncio.Event()
    async with on_socket(FakeEngine(), ServerSettings(drain_seconds=1), listener, loading) as server:
        await asyncio.sleep(0.1)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", server.port))
        open_to_clients(listener)
        loading.set()
        async with client(server) as http:
            assert (await http.get("/readyz")).status_code == 200


async def test_a_start_that_fails_before_the_socket_listens():
    async def failing():
        raise ModelError("No such model.")

    listener = bind("127.0.0.1", 0, None)
    with pytest.raises(ModelError):
        await asyncio.wait_for(serve(failing(), listener, ServerSettings()), 20)
    assert listener.fileno() == -1


async def test_signal_handlers_are_taken_back():
    before = signal.getsignal(signal.SIGTERM)
    async with on_socket(FakeEngine()) as server:
        await asyncio.sleep(0.05)
        os.kill(os.getpid(), signal.SIGTERM)
        await server.task
    assert signal.getsignal(signal.SIGTERM) == before
