"""Where images are read from, and where never: no request reaches an address that is not public."""

from __future__ import annotations

import asyncio
import base64
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpcore
import pytest

from tessera.errors import ConfigError, RequestError
from tessera.media import kinds
from tessera.media.fetch import MediaFetcher
from tessera.media.network import PublicNetwork, is_public
from tessera.media.rules import MediaRules

PUBLIC = "93.184.216.34"
IMAGE = b"the image's bytes"
DOMAINS = ("images.example", "*.cdn.example")


def answer(body: bytes = IMAGE, status: str = "200 OK", **headers: str) -> bytes:
    fields = {"content_type": "image/png", "content_length": str(len(body)), **headers}
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in fields.items())
    return f"HTTP/1.1 {status}\r\n{lines}\r\n".encode() + body


def redirect(target: str) -> bytes:
    return answer(b"", "302 Found", location=target)


class Stream(httpcore.AsyncMockStream):
    """sent: what was written, of all streams."""

    def __init__(self, parts: list[bytes], sent: list[bytes]) -> None:
        super().__init__(parts)
        self._sent = sent

    async def write(self, buffer: bytes, *_: Any, **__: Any) -> None:
        self._sent.append(buffer)


class Internet(httpcore.AsyncMockBackend):
    """Answers each connection with the next answer. hosts: addresses by name, each resolution with the next."""

    def __init__(self, *answers: bytes | None, hosts: dict[str, list[list[str]]] | None = None) -> None:
        self._answers = list(answers)
        self._hosts = hosts or {}
        self.reached: list[str] = []
        self.sent: list[bytes] = []

    async def connect_tcp(self, host: str, port: int, *_: Any, **__: Any) -> httpcore.AsyncNetworkStream:
        self.reached.append(host)
        body = self._answers.pop(0)
        if body is None:
            await asyncio.sleep(60)
        assert body is not None
        return Stream([body, b""], self.sent)

    async def resolve(self, host: str, port: int) -> list[str]:
        known = self._hosts.get(host, [[PUBLIC]])
        return known.pop(0) if len(known) > 1 else known[0]

    async def read(self, url: str, **rules: Any) -> bytes:
        network = PublicNetwork(self.resolve, self)
        return await MediaFetcher(MediaRules(**{"domains": DOMAINS, **rules}), network).read(url, kinds.IMAGE)


async def test_an_image_is_fetched_from_an_allowed_host() -> None:
    internet = Internet(*[answer()] * 4)
    for url in (
        "http://images.example/a.png",
        "http://IMAGES.example:8080/a.png?b=c",
        "http://a.cdn.example/x",
        "http://a.b.cdn.example./x",
    ):
        assert await internet.read(url) == IMAGE
    assert internet.reached == [PUBLIC] * 4
    assert b"GET /a.png?b=c HTTP/1.1\r\nHost: images.example:8080\r\n" in b"".join(internet.sent)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("http://other.example/a", "fetches no images from other.example"),
        ("http://cdn.example/a", "fetches no images from cdn.example"),
        ("http://images.example.evil.test/a", "fetches no images from"),
        ("http://images.example@evil.test/a", "must have the form"),
        ("http://evil.test#@images.example/a", "fetches no images from evil.test"),
        ("http://evil.test\\@images.example/a", "not valid|fetches no images|must have the form"),
        ("http:///a", "must have the form"),
        ("http://[::1/a", "not valid"),
        ("ftp://images.example/a", "begins with"),
        ("gopher://images.example/a", "begins with"),
        ("/etc/passwd", "begins with"),
        ("", "begins with"),
        ("file:///etc/passwd", "reads no files"),
    ],
)
async def test_urls_that_are_not_allowed_reach_nothing(url: str, message: str) -> None:
    internet = Internet()
    with pytest.raises(RequestError, match=message):
        await internet.read(url)
    assert internet.reached == []


async def test_nothing_is_fetched_unless_a_host_is_allowed() -> None:
    internet = Internet()
    with pytest.raises(RequestError, match="fetches no images"):
        await internet.read("http://images.example/a", domains=())
    assert internet.reached == []


PRIVATE = (
    "127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.0.1", "169.254.169.254", "100.64.0.1", "0.0.0.0", "224.0.0.1",
    "255.255.255.255", "192.0.2.1", "::1", "::", "fe80::1", "fc00::1", "ff02::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1",
    "64:ff9b::7f00:1", "2002:7f00:1::", "2001:0:4136:e378:8000:63bf:3fff:fdd2", "fe80::1%eth0", "not an address",
)  # fmt: skip


@pytest.mark.parametrize("address", PRIVATE)
async def test_private_addresses_get_no_request(address: str) -> None:
    assert not is_public(address)
    for addresses in ([address], [PUBLIC, address]):
        internet = Internet(hosts={"images.example": [addresses]})
        with pytest.raises(RequestError, match="not public"):
            await internet.read("http://images.example/a")
        assert internet.reached == []


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "[::1]", "169.254.169.254", "2130706433", "0x7f.1", "127.1", "localhost"]
)
async def test_names_of_this_machine_get_no_request_where_all_hosts_are_allowed(host: str) -> None:
    """By the machine's own resolver, which knows such spellings."""
    internet = Internet()
    fetcher = MediaFetcher(MediaRules(domains=("*",)), PublicNetwork(None, internet))
    with pytest.raises(RequestError):
        await fetcher.read(f"http://{host}/latest/meta-data/", kinds.IMAGE)
    assert internet.reached == []


async def test_public_addresses_are_public() -> None:
    assert all(map(is_public, (PUBLIC, "8.8.8.8", "2606:4700::1111", "::ffff:8.8.8.8")))


async def test_each_redirect_is_checked_anew() -> None:
    hosts = {"inner.cdn.example": [["10.0.0.1"]]}
    internet = Internet(redirect("/b"), redirect("http://x.cdn.example/c"), redirect("//images.example/d"), answer())
    assert await internet.read("http://images.example/a") == IMAGE
    assert internet.reached == [PUBLIC] * len(internet.reached)
    for target, message in (
        ("http://inner.cdn.example/", "not public"),
        ("http://other.example/", "fetches no images from other.example"),
        ("file:///etc/passwd", "must have the form"),
        ("http://a@images.example/", "must have the form"),
        ("data:image/png;base64,AAAA", "must have the form"),
    ):
        internet = Internet(redirect(target), hosts=hosts)
        with pytest.raises(RequestError, match=message):
            await internet.read("http://images.example/a")
        assert internet.reached == [PUBLIC]


async def test_a_host_that_resolves_to_another_address_the_second_time_gets_no_request_there() -> None:
    hosts = {"images.example": [[PUBLIC], ["127.0.0.1"]]}
    internet = Internet(answer(b"", "302 Found", location="/b", connection="close"), hosts=hosts)
    with pytest.raises(RequestError, match="not public"):
        await internet.read("http://images.example/a")
    assert internet.reached == [PUBLIC]


async def test_redirects_have_a_limit() -> None:
    internet = Internet(*[answer(b"", "302 Found", location="/a", connection="close")] * 9)
    with pytest.raises(RequestError, match="redirects more than 2 times"):
        await internet.read("http://images.example/a", redirects=2)
    assert len(internet.reached) == 3


@pytest.mark.parametrize(
    ("sent", "message"),
    [
        (answer(b"x" * 1001), "at most 1000 bytes"),
        (answer(b"x", content_length="99999999999999"), "at most 1000 bytes"),
        (b"HTTP/1.1 200 OK\r\ncontent-type: image/png\r\n\r\n" + b"x" * 5000, "at most 1000 bytes"),
        (answer(content_type="text/html"), "'text/html', and not of an image"),
        (answer(content_encoding="gzip"), "compressed"),
        (answer(status="404 Not Found"), "status 404"),
        (answer(status="500 Oops"), "status 500"),
        (b"no HTTP at all", "could not be fetched"),
        (b"", "could not be fetched"),
        (answer()[:-4], "could not be fetched"),
        (None, "did not arrive within 0.2 s"),
    ],
)
async def test_answers_that_are_no_image_of_a_size(sent: bytes | None, message: str) -> None:
    with pytest.raises(RequestError, match=message) as caught:
        await Internet(sent).read("http://images.example/a", max_bytes=1000, seconds=0.2)
    assert "\n" not in caught.value.message


# ---- data URLs -----------------------------------------------------------------------------------------------------


async def test_data_urls_are_always_read() -> None:
    text = base64.b64encode(IMAGE).decode()
    for head in ("image/png", "IMAGE/JPEG;charset=utf-8", "application/octet-stream"):
        assert await MediaFetcher(MediaRules()).read(f"data:{head};base64,{text}", kinds.IMAGE) == IMAGE
    assert (
        await MediaFetcher(MediaRules()).read(f"data:image/png;base64,{text.replace('=', '%3D')}", kinds.IMAGE) == IMAGE
    )


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("data:image/png;base64", "has the form"),
        ("data:image/png,abc", "has the form"),
        ("data:,abc", "has the form"),
        ("data:text/html;base64,AAAA", "not of an image"),
        ("data:;base64,AAAA", "not of an image"),
        ("data:image/png;base64,A", "no base64"),
        ("data:image/png;base64,AA=A", "no base64"),
        ("data:image/png;base64,\u00e4\u00e4\u00e4\u00e4", "no base64"),
        ("data:image/png;base64," + "A" * 2000, "at most 1000 bytes"),
    ],
)
async def test_data_urls_that_hold_no_image(url: str, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        await MediaFetcher(MediaRules(max_bytes=1000)).read(url, kinds.IMAGE)


# ---- files ---------------------------------------------------------------------------------------------------------


def device(folder: Path) -> str:
    os.mkfifo(folder / "fifo")
    return "fifo"


def link(folder: Path) -> str:
    (folder / "link").symlink_to(folder.parent / "secret")
    return "link"


def linked_folder(folder: Path) -> str:
    (folder / "outside").symlink_to(folder.parent)
    return "outside/secret"


@pytest.mark.parametrize(
    "name", ["missing", "../secret", "..%2fsecret", "a/../../secret", "", ".", "a", device, link, linked_folder]
)
async def test_files_are_read_below_the_folder_alone(name: str | Callable[[Path], str], tmp_path: Path) -> None:
    folder = tmp_path / "media"
    (folder / "a").mkdir(parents=True)
    (tmp_path / "secret").write_bytes(b"secret")
    (folder / "a" / "b c.png").write_bytes(IMAGE)
    fetcher = MediaFetcher(MediaRules(local_path=str(folder), max_bytes=1000))
    for url in (f"file://{folder}/a/b%20c.png", f"file://localhost{folder}/a/b c.png", f"file:{folder}/a/./b%20c.png"):
        assert await fetcher.read(url, kinds.IMAGE) == IMAGE
    asked = name if isinstance(name, str) else name(folder)
    with pytest.raises(RequestError, match="not one that this server reads"):
        await fetcher.read(f"file://{folder}/{asked}", kinds.IMAGE)
    with pytest.raises(RequestError, match="not one that this server reads"):
        await fetcher.read(f"file://host{folder}/a/b%20c.png", kinds.IMAGE)


async def test_a_file_has_a_size_and_the_folder_exists(tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(bytes(1001))
    with pytest.raises(RequestError, match="at most 1000 bytes"):
        await MediaFetcher(MediaRules(local_path=str(tmp_path), max_bytes=1000)).read(
            f"file://{tmp_path}/large", kinds.IMAGE
        )
    with pytest.raises(ConfigError, match="is no folder"):
        MediaFetcher(MediaRules(local_path=str(tmp_path / "missing")))
