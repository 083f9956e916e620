"""Where the server listens besides a port: a Unix socket, and TLS. With httpx, curl and OpenAI's client."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import logging
import os
import signal
import socket
import ssl

import httpx
import openai
import pytest

from tessera.cli.listen import unix_listener
from tessera.server.certificates import certificates
from tessera.server.settings import ServerSettings
from tests.certificates import Authority
from tests.server.conftest import on_socket
from tests.server.fake_engine import MODEL, FakeEngine, Script
from tests.server.sse import check_chat, read_stream
from tests.server.test_lifecycle import ENDLESS, STREAM, until

CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}]}


async def curl(*arguments):
    process = await asyncio.create_subprocess_exec(
        "curl", "--silent", "--show-error", "--max-time", "20", *map(str, arguments),
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, error = await process.communicate()
    return process.returncode, out.decode(), error.decode()


# ---- Unix socket ------------------------------------------------------------------------------------------------


def over(path, **options):
    return httpx.AsyncClient(transport=httpx.AsyncHTTPTransport(uds=str(path)), base_url="http://localhost", **options)


async def test_a_unix_socket_serves_as_a_port_does(tmp_path):
    path = tmp_path / "socket"
    with unix_listener(str(path), 16) as listener:
        async with on_socket(FakeEngine(), ServerSettings(api_keys=("key",), drain_seconds=0.1), listener):
            assert path.stat().st_mode & 0o777 == 0o600
            headers = {"Authorization": "Bearer key"}
            async with over(path, headers=headers) as http:
                assert (await http.get("/health")).status_code == 200
                check_chat((await http.post("/v1/chat/completions", json=STREAM)).text)
            async with over(path) as http:
                assert (await http.get("/v1/models")).status_code == 401
            async with openai.AsyncOpenAI(
                base_url="http://localhost/v1", api_key="key", http_client=over(path)
            ) as client:
                assert (await client.chat.completions.create(**CHAT)).choices[0].message.content == "Hello, wörld!"
            code, out, _ = await curl("--unix-socket", path, "http://localhost/livez")
            assert (code, json.loads(out)) == (0, {"status": "ok"})
    assert not path.exists()


async def test_a_client_that_leaves_over_a_unix_socket_ends_its_request(tmp_path):
    path = tmp_path / "socket"
    engine = FakeEngine(script=ENDLESS)
    with unix_listener(str(path), 16) as listener:
        async with on_socket(engine, ServerSettings(drain_seconds=0.1), listener):
            async with over(path) as http, http.stream("POST", "/v1/chat/completions", json=STREAM) as response:
                await anext(response.aiter_lines())
                assert engine.running
            await until(lambda: not engine.running)


# ---- TLS --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def server_identity(authority):
    return authority.issue("server")


def settings(authority, identity, cert_reqs=0):
    ca_certs = str(authority.identity.certificate) if cert_reqs else None
    tls = certificates(str(identity.certificate), str(identity.key), ca_certs, cert_reqs)
    return ServerSettings(tls=tls, drain_seconds=0.1)


def trusting(authority, identity=None):
    context = ssl.create_default_context(cafile=authority.identity.certificate)
    if identity is not None:
        context.load_cert_chain(identity.certificate, identity.key)
    return context


async def test_https_for_httpx_openai_and_curl(authority, server_identity):
    async with on_socket(FakeEngine(), settings(authority, server_identity)) as server:
        assert server.url.startswith("https://")
        async with httpx.AsyncClient(base_url=server.url, verify=trusting(authority)) as http:
            assert (await http.get("/health")).status_code == 200
            streamed = await http.post("/v1/chat/completions", json=STREAM)
            assert read_stream(streamed.text)
        async with server.openai(http_client=httpx.AsyncClient(verify=trusting(authority))) as client:
            assert (await client.chat.completions.create(**CHAT)).choices[0].message.content == "Hello, wörld!"
        code, out, error = await curl("--cacert", authority.identity.certificate, f"{server.url}/livez")
        assert (code, error, json.loads(out)) == (0, "", {"status": "ok"})


async def test_a_client_that_trusts_others_or_speaks_no_tls_leaves_the_server_well(authority, server_identity, caplog):
    async with on_socket(FakeEngine(), settings(authority, server_identity)) as server:
        async with httpx.AsyncClient() as http:
            with pytest.raises(httpx.ConnectError):
                await http.get(f"{server.url}/health")
            with pytest.raises(httpx.TransportError):
                await http.get(f"http://127.0.0.1:{server.port}/health")
        _, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(os.urandom(512))
        writer.close()
        old = trusting(authority)
        old.minimum_version, old.maximum_version = ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_2
        async with httpx.AsyncClient(base_url=server.url, verify=old) as http:
            assert (await http.get("/health")).status_code == 200
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR and record.exc_info]


async def test_clients_certificates_can_be_required(authority, server_identity, tmp_path):
    known, stranger = authority.issue("client"), Authority(tmp_path, "stranger").issue("client")
    async with on_socket(FakeEngine(), settings(authority, server_identity, cert_reqs=2)) as server:
        async with httpx.AsyncClient(base_url=server.url, verify=trusting(authority, known)) as http:
            assert (await http.get("/v1/models")).status_code == 200
        for identity in (None, stranger):
            async with httpx.AsyncClient(base_url=server.url, verify=trusting(authority, identity)) as http:
                with pytest.raises(httpx.TransportError):
                    await http.get("/v1/models")


async def test_an_idle_client_over_tls_does_not_hold_up_the_end(authority, server_identity):
    tls = settings(authority, server_identity)
    async with on_socket(FakeEngine(), dataclasses.replace(tls, drain_seconds=60)) as server:
        plain = await asyncio.to_thread(socket.create_connection, ("127.0.0.1", server.port), 5)
        with await asyncio.to_thread(trusting(authority).wrap_socket, plain, server_hostname="127.0.0.1"):
            # It reads nothing, not even that the server wants to close.
            os.kill(os.getpid(), signal.SIGTERM)
            assert await asyncio.wait_for(server.task, 20) == 0


async def test_a_stream_cut_by_the_client_over_tls_ends_its_request(authority, server_identity):
    engine = FakeEngine(script=Script(pieces=["x"] * 400, delay=0.01))
    async with (
        on_socket(engine, settings(authority, server_identity)) as server,
        httpx.AsyncClient(base_url=server.url, verify=trusting(authority)) as http,
    ):
        async with http.stream("POST", "/v1/chat/completions", json=STREAM) as response:
            await anext(response.aiter_lines())
        await until(lambda: not engine.running)


async def test_sighup_exchanges_an_expired_certificate_and_keeps_it_if_the_new_one_is_wrong(authority, caplog):
    caplog.set_level("INFO", "tessera")
    engine = FakeEngine(script=Script(pieces=["x"] * 400, delay=0.01))
    identity = authority.issue("renewed", days=-1)
    async with on_socket(engine, settings(authority, identity)) as server:
        lax = trusting(authority)
        lax.check_hostname, lax.verify_mode = False, ssl.CERT_NONE

        async def healthy():
            async with httpx.AsyncClient(base_url=server.url, verify=trusting(authority)) as http:
                return (await http.get("/health")).status_code == 200

        async def reload(line):
            os.kill(os.getpid(), signal.SIGHUP)
            await until(lambda: line in caplog.text)

        async with (
            httpx.AsyncClient(base_url=server.url, verify=lax) as http,
            http.stream("POST", "/v1/chat/completions", json=STREAM) as stream,
        ):
            with pytest.raises(httpx.ConnectError, match="expired"):
                await healthy()
            authority.issue("renewed")
            await reload(f"Read the certificate from '{identity.certificate}'.")
            assert await healthy()
            identity.key.write_text("half of a")
            await reload("The certificate stays as it was: --ssl-certfile")
            assert await healthy()
            # Who was there before has lost nothing.
            assert engine.running
            await stream.aclose()
        assert not server.task.done()
