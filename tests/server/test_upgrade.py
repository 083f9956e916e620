"""Clients that offer another protocol with each request (Java's does) are answered in this one, body and all."""

from __future__ import annotations

import asyncio
import json
import re

import pytest

from tests.server.conftest import on_socket
from tests.server.fake_engine import MODEL, FakeEngine

H2C = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAAAAIAAAAAAAMAAAAA\r\n"
WEBSOCKET = b"connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n"
# Longer than a segment, so that it arrives in pieces; the line in it is no header.
BODY = json.dumps({"model": MODEL, "prompt": "a", "metadata": {"x": "y" * 200_000, "z": "\r\nUpgrade: h2c"}}).encode()


@pytest.mark.parametrize("offer", [H2C, WEBSOCKET, H2C.replace(b"Upgrade: h2c", b"UPGRADE: h2c"), b""])
async def test_the_offer_is_not_taken_up(offer, caplog):
    engine = FakeEngine()
    async with on_socket(engine) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        for _ in range(2):
            writer.write(
                b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n" + offer + b"Content-Type: application/json\r\n"
            )
            writer.write(b"Content-Length: %d\r\n\r\n" % len(BODY))
            await writer.drain()
            await asyncio.sleep(0.02)
            writer.write(BODY)
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 20)
            assert head.startswith(b"HTTP/1.1 200 ")
            length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
            answer = json.loads(await reader.readexactly(length))
            assert answer["choices"][0]["text"] == "Hello, wörld!"
        writer.write(b"GET /livez HTTP/1.1\r\nHost: x\r\n" + offer + b"\r\n")
        assert (await asyncio.wait_for(reader.readuntil(b"}"), 20)).startswith(b"HTTP/1.1 200 ")
        writer.close()
        assert not [record for record in caplog.records if record.name.startswith("uvicorn")]


async def ask(port: int, *pieces: bytes) -> bytes:
    """The status line of the answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for piece in pieces:
        writer.write(piece)
        await writer.drain()
        await asyncio.sleep(0.02)
    line = await asyncio.wait_for(reader.readuntil(b"\r\n"), 20)
    writer.close()
    return line


async def test_a_header_that_arrives_in_pieces_is_not_missed():
    """Each piece ends within the header or its line break."""
    async with on_socket(FakeEngine()) as server:
        head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n" + H2C
        head += b"Content-Length: %d\r\n\r\n" % len(BODY)
        at = head.index(b"\r\nUpgrade")
        for cut in (at + 1, at + 2, at + 5, len(head) - 2, len(head) - 1):
            assert (await ask(server.port, head[:cut], head[cut:], BODY)).startswith(b"HTTP/1.1 200 ")


SECRET = b"GET /v1/models/secret HTTP/1.1\r\nHost: x\r\n\r\n"


def posted(offer: bytes, framing: bytes, body: bytes) -> bytes:
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    return head + offer + framing + b"\r\n" + body


def chunked(body: bytes) -> bytes:
    return b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)


LENGTH = b"Content-Length: %d\r\n" % len(SECRET)
CHUNKED = b"Transfer-Encoding: chunked\r\n"
FRAMED = [posted(H2C, LENGTH, SECRET), posted(H2C, CHUNKED, chunked(SECRET)), posted(LENGTH, H2C, SECRET)]


async def answers_to(*pieces: bytes) -> list[int]:
    """The statuses of all answers to one connection, which ends with a request of its own."""
    async with on_socket(FakeEngine()) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        for piece in (*pieces, b"GET /livez HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"):
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0.002)
        answer = await asyncio.wait_for(reader.read(), 20)
        writer.close()
        return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d{3}) ", answer)]


@pytest.mark.parametrize("request_", FRAMED)
@pytest.mark.parametrize("offer", [b"Upgrade: h2c", b"UPGRADE: h2c", b"upgrade:h2c", b"UpGrAdE:\th2c"])
async def test_a_body_is_never_read_as_the_next_request(request_, offer):
    """However the offer is spelled, and though its head comes in one segment with the end of the request before it."""
    one = request_.replace(b"Upgrade: h2c", offer)
    assert await answers_to(one) == [400, 200]
    assert await answers_to(one + one) == [400, 400, 200]
    body = one.index(b"\r\n\r\n") + 4
    assert await answers_to(one[:-3], one[-3:] + one[:body], one[body:]) == [400, 400, 200]


@pytest.mark.parametrize("request_", FRAMED)
async def test_a_body_is_never_read_as_the_next_request_however_it_is_split(request_):
    assert await answers_to(*(request_[at : at + 1] for at in range(len(request_)))) == [400, 200]


async def test_a_tunnel_is_refused_and_the_connection_closed():
    head = b"CONNECT x:80 HTTP/1.1\r\nHost: x\r\n\r\n"
    assert await answers_to(head + SECRET) == [400]


async def test_nothing_is_held_back_once_the_head_is_complete():
    """A request is answered although it ends in what may be the start of the header."""
    async with on_socket(FakeEngine()) as server:
        get = b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n"
        for cut in range(len(get) - 4, len(get)):
            assert (await ask(server.port, get[:cut], get[cut:])).startswith(b"HTTP/1.1 200 ")
        body = json.dumps({"model": MODEL, "prompt": "a"}).encode() + b"\r\n"
        head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        assert (await ask(server.port, head + b"Content-Length: %d\r\n\r\n" % len(body) + body)).startswith(
            b"HTTP/1.1 200 "
        )
        chunked = head + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n" % len(body)
        assert (await ask(server.port, chunked, body + b"\r\n0\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
