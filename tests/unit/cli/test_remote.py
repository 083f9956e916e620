"""A server as a client: what is sent, what is understood, and every way it goes wrong as one line."""

from __future__ import annotations

import httpx
import pytest

from tessera.cli.client import AnswerDelta, RequestUsage
from tessera.cli.client.remote import RemoteClient, connect, error_of, read_piece
from tessera.errors import (
    AuthenticationError,
    ConfigError,
    NotFoundError,
    OverloadedError,
    RequestError,
    ServerError,
    TooLargeError,
)
from tests.unit.cli.fake_server import URL, FakeServer, Timing


async def collected(pieces):
    return [piece async for piece in pieces]


def opened(server, **settings):
    return connect(settings.pop("url", URL), **{"api_key": None, "model_name": None, "transport": server, **settings})


async def test_a_chat_is_asked_and_streams():
    server = FakeServer()
    messages = [{"role": "user", "content": "Hi"}]
    async with opened(server, api_key="secret") as client:
        assert (client.model, client.max_model_len) == ("m", 512)
        pieces = await collected(client.chat(messages, {"temperature": 0.0, "max_tokens": 2}))
    assert [piece.text for piece in pieces] == ["t0 ", "t1 ", "", ""]
    assert [piece.finish_reason for piece in pieces] == [None, None, "length", None]
    assert pieces[-1].usage == RequestUsage(7, 2)
    (body,) = server.asked
    assert body["messages"] == messages
    assert (body["model"], body["stream"], body["temperature"], body["max_tokens"]) == ("m", True, 0.0, 2)
    assert {headers["authorization"] for headers in server.headers} == {"Bearer secret"}


async def test_token_ids_are_counted_even_where_they_have_no_text():
    server = FakeServer(words=lambda _number: "")
    async with opened(server) as client:
        pieces = await collected(client.complete([1, 2], {"max_tokens": 3}))
    assert [piece.num_tokens for piece in pieces] == [1, 1, 1, 0, 0]
    assert server.asked[0]["prompt"] == [1, 2]
    assert "authorization" not in server.headers[0]


async def test_closing_a_stream_ends_its_request():
    server = FakeServer()
    async with opened(server) as client:
        pieces = client.complete("a", {})
        await anext(pieces)
        assert server.closed == 0
        await pieces.aclose()
        assert server.closed == 1


@pytest.mark.parametrize(
    ("timing", "error", "what"),
    [
        (Timing(cut=2), ServerError, "closed the connection in the middle of an answer"),
        (Timing(cut=2, error="the engine\n died"), ServerError, "ended the answer: the engine died"),
        (Timing(status=400, error="too hot"), RequestError, "^too hot$"),
        (Timing(status=401, error="wrong."), AuthenticationError, "rejected the API key: wrong. Set --api-key"),
        (Timing(status=413, error="too long"), TooLargeError, "^too long$"),
        (Timing(status=503, error="full"), OverloadedError, "^full$"),
        (Timing(status=500, error=""), ServerError, "failed: HTTP status 500"),
    ],
)
async def test_what_a_server_says_is_an_error_of_our_own(timing, error, what):
    async with opened(FakeServer([timing])) as client:
        with pytest.raises(error, match=what):
            await collected(client.complete("a", {}))


@pytest.mark.parametrize("body", [b"<html>", b"\xff", b'["x"]', b'{"error": null}', b'{"error": {"message": 3}}'])
def test_an_error_whose_body_is_no_error_has_its_status(body):
    assert "429" in error_of(429, body, URL).message


def test_errors_of_other_shapes_are_read():
    assert error_of(422, b'{"detail": "no"}', URL).message == "no"
    assert error_of(404, b'{"message": "gone"}', URL).message == "gone"


@pytest.mark.parametrize("data", [b"{", b"[]", b'{"choices": 3}', b"\xff\xfe"])
def test_a_chunk_that_is_none_is_one_line(data):
    with pytest.raises(ServerError, match="not a chunk of an answer") as caught:
        read_piece(data)
    assert "\n" not in caught.value.message


def test_fields_that_other_servers_have_or_leave_out_do_no_harm():
    assert read_piece(b'{"choices": [{"delta": {"role": "assistant", "content": null}, "x": 1}]}') == AnswerDelta()
    assert read_piece(
        b'{"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": null}}'
    ).usage == RequestUsage(1, 0)


async def test_which_model_is_asked():
    server = FakeServer(models={"data": [{"id": "a"}, {"id": "b"}]})
    async with opened(server) as client:
        assert (client.model, client.max_model_len) == ("a", None)
    async with opened(server, model_name="b") as client:
        assert client.model == "b"
    with pytest.raises(NotFoundError, match="does not serve 'c'; it serves a, b"):
        async with opened(server, model_name="c"):
            pass


@pytest.mark.parametrize("models", [[], {"data": []}, {"data": 3}, "x"])
async def test_an_address_without_models(models):
    with pytest.raises(ServerError, match="is not an OpenAI API|serves no models"):
        async with opened(FakeServer(models=models)):
            pass


async def test_an_address_may_leave_v1_out_and_end_in_a_slash():
    for url in ("http://server.test", "http://server.test/", "http://server.test/v1/"):
        async with opened(FakeServer(), url=url) as client:
            assert isinstance(client, RemoteClient)
            assert await collected(client.complete("a", {"max_tokens": 1}))
    with pytest.raises(NotFoundError, match="http://server.test/v2 is not an OpenAI API"):
        async with opened(httpx.MockTransport(lambda _request: httpx.Response(404)), url="http://server.test/v2"):
            pass


@pytest.mark.parametrize("url", ["", "server", "ftp://server", "http://", "http://a:b"])
async def test_what_is_no_address_is_refused(url):
    with pytest.raises(ConfigError, match="is not an HTTP URL such as http://127.0.0.1:8000/v1"):
        async with opened(FakeServer(), url=url):
            pass


async def test_a_key_that_no_header_can_hold():
    with pytest.raises(ConfigError, match="API key has characters"):
        async with opened(FakeServer(), api_key="a\nb"):
            pass


@pytest.mark.parametrize(
    ("error", "what"),
    [
        (httpx.ConnectError("refused"), "Cannot connect to .*refused"),
        (httpx.ReadTimeout("slow"), "did not answer in time"),
        (httpx.RemoteProtocolError("nonsense"), "Lost the connection to .*nonsense"),
    ],
)
async def test_what_goes_wrong_on_the_way(error, what):
    def fail(_request):
        raise error

    with pytest.raises(ServerError, match=what) as caught:
        async with opened(httpx.MockTransport(fail)):
            pass
    assert caught.value.exit_code == 8
