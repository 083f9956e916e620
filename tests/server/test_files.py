"""Files, by OpenAI's client and by hand; answers are held against its types."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import httpx
import hypothesis
import openai
import pytest
from hypothesis import strategies
from openai.types import FileDeleted, FileObject

from tessera.errors import ConfigError, OverloadedError, RequestError
from tessera.server.batches import files
from tessera.server.batches.storage import Incoming, Storage
from tessera.server.multipart import FormPart, FormReader
from tessera.server.settings import Limits, ServerSettings
from tests.server.conftest import in_process, on_socket
from tests.server.fake_engine import FakeEngine
from tests.server.test_errors import check_error

LINES = b'{"custom_id": "a"}\n'
BOUNDARY = "b0undary"
NOT_ALLOWED = "origin_not_allowed"
FORM = {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}"}


def form(*parts: tuple[str, bytes]) -> bytes:
    """parts: what follows `form-data; ` in the header of each, and its content."""
    made = [b"--b0undary\r\nContent-Disposition: form-data; %b\r\n\r\n%b\r\n" % (h.encode(), c) for h, c in parts]
    return b"".join(made) + b"--b0undary--\r\n"


PURPOSE = ('name="purpose"', b"batch")
FILE = ('name="file"; filename="in.jsonl"', LINES)


async def test_a_file_goes_up_and_comes_back():
    async with on_socket(FakeEngine()) as server, server.openai() as client:
        made = await client.files.create(file=("in.jsonl", LINES), purpose="batch")
        FileObject.model_validate(made.model_dump(), strict=True)
        assert (made.filename, made.bytes, made.purpose, made.status) == ("in.jsonl", 19, "batch", "processed")
        assert await client.files.retrieve(made.id) == made
        assert (await client.files.content(made.id)).content == LINES
        gone = await client.files.delete(made.id)
        FileDeleted.model_validate(gone.model_dump(), strict=True)
        for asking in (client.files.retrieve(made.id), client.files.content(made.id), client.files.delete(made.id)):
            with pytest.raises(openai.NotFoundError):
                await asking


async def test_a_file_for_another_purpose_is_kept_but_no_batch_reads_it():
    async with on_socket(FakeEngine()) as server, server.openai() as client:
        made = await client.files.create(file=b"text", purpose="user_data")
        assert [one async for one in client.files.list(purpose="user_data")] == [made]
        assert (await client.files.content(made.id)).content == b"text"
        with pytest.raises(openai.BadRequestError, match="purpose must be batch"):
            await client.batches.create(input_file_id=made.id, endpoint="/v1/responses", completion_window="24h")


async def test_files_come_in_pages():
    async with on_socket(FakeEngine()) as server, server.openai() as client:
        made = [(await client.files.create(file=(f"{n}", LINES), purpose="batch")).id for n in range(5)]
        assert [one.id async for one in client.files.list(order="asc", limit=2)] == made
        newest = await client.files.list(limit=2, purpose="batch")
        assert ([one.id for one in newest.data], newest.has_more) == ([made[4], made[3]], True)
        after = await client.files.list(after=made[3], limit=100)
        assert ([one.id for one in after.data], after.has_more) == ([made[2], made[1], made[0]], False)
        assert (await client.files.list(purpose="batch_output")).data == []
        nothing = await client.files.list(limit=0)
        assert (nothing.data, nothing.has_more) == ([], False)


@pytest.mark.parametrize(
    ("query", "status", "param"),
    [("limit=-1", 400, "limit"), ("limit=10001", 400, "limit"), ("order=up", 400, "order"), ("after=x", 404, "after")],
)
async def test_a_page_has_limits(api, query, status, param):
    check_error(await api.client.get(f"/v1/files?{query}"), status, param)


async def test_each_key_has_its_own():
    settings = ServerSettings(api_keys=("one", "two"))
    async with (
        on_socket(FakeEngine(), settings) as server,
        server.openai(api_key="one") as mine,
        server.openai(api_key="two") as other,
    ):
        made = await mine.files.create(file=("in.jsonl", LINES), purpose="batch")
        assert (await other.files.list()).data == []
        for asking in (other.files.retrieve(made.id), other.files.content(made.id), other.files.delete(made.id)):
            with pytest.raises(openai.NotFoundError):
                await asking
        assert (await mine.files.list()).data == [made]


WRONG: list[tuple[bytes, str | None, str]] = [
    (form(FILE), "purpose", "purpose is missing"),
    (form(PURPOSE), "file", "file is missing"),
    (form(('name="purpose"', b"fun"), FILE), "purpose", "must be one of batch, assistants, evals"),
    (form(FILE, ('name="purpose"', b"batch_output")), "purpose", "Only the server makes"),
    (form(('name="purpose"', b"x" * 65), FILE), "purpose", "at most 64 bytes"),
    (form(PURPOSE, FILE, FILE), "file", "file is there twice"),
    (form(PURPOSE, ('name="file"', b"x")), "file", "give it a filename"),
    (form(PURPOSE, (f'name="file"; filename="{"n" * 256}"', b"x")), "file", "at most 255 characters"),
    (form(PURPOSE, FILE, ('name="expires_after[seconds]"', b"1")), "expires_after", "not supported here; remove it"),
    (form(PURPOSE, ('filename="x"', b"x")), None, "has no name"),
    (form(PURPOSE, FILE)[:-30], None, "ended before its last delimiter"),
    (b"--b0undary\r\nContent-Type: text/plain\r\n\r\nx\r\n--b0undary--", None, "has no name"),
    (b"--b0undary\r\n" + b"x" * 9000 + b"\r\n\r\n", None, "must be multipart/form-data as in"),
    (b"--b0undaryXY", None, "form is malformed"),
    (b"{}", None, "form is malformed"),
]


@pytest.mark.parametrize(("body", "param", "reason"), WRONG, ids=range(len(WRONG)))
async def test_what_is_wrong_is_refused_by_name_and_leaves_nothing(tmp_path, body, param, reason):
    async with in_process(FakeEngine(), ServerSettings(batch_store=str(tmp_path))) as api:
        before = {path.name for path in tmp_path.iterdir()}
        assert reason in check_error(await api.client.post("/v1/files", content=body, headers=FORM), 400, param)
        assert {path.name for path in tmp_path.iterdir()} == before
        assert (await api.client.get("/v1/files")).json()["data"] == []


async def test_a_file_may_come_first_packed_and_with_a_path_in_its_name(api):
    body = form(('filename="C:\\\\dir\\\\a.jsonl"; name=file', LINES), PURPOSE)
    for headers, content in ((FORM, body), ({**FORM, "Content-Encoding": "gzip"}, gzip.compress(body))):
        made = (await api.client.post("/v1/files", content=content, headers=headers)).json()
        assert (made["filename"], made["bytes"]) == ("a.jsonl", len(LINES))


async def test_a_body_of_another_kind_is_a_415(api):
    for kind in ("application/json", "text/plain", "application/x-www-form-urlencoded"):
        said = check_error(await api.client.post("/v1/files", content=b"{}", headers={"Content-Type": kind}), 415)
        assert "must be a form" in said
    said = check_error(
        await api.client.post("/v1/files", content=b"x", headers={"Content-Type": "multipart/form-data"}), 400
    )
    assert "with a boundary" in said


async def test_a_web_page_sends_no_file_unasked(api):
    """A browser sends a page's form to any server, but asks first if the page adds a header."""
    body = form(PURPOSE, FILE)
    for headers in ({"Origin": "https://page.example"}, {"Sec-Fetch-Site": "cross-site"}):
        check_error(
            await api.client.post("/v1/files", content=body, headers={**FORM, **headers}), 403, code=NOT_ALLOWED
        )
        allowed = {**FORM, **headers, "Authorization": "Bearer any"}
        assert (await api.client.post("/v1/files", content=body, headers=allowed)).status_code == 200


async def test_a_file_has_a_largest_size_and_so_have_all_together(tmp_path):
    limits = Limits(file_bytes=100_000)
    settings = ServerSettings(batch_store=str(tmp_path), batch_store_bytes=250_000, limits=limits)

    async def send(client: httpx.AsyncClient, size: int) -> httpx.Response:
        return await client.post(
            "/v1/files", content=form(PURPOSE, ('name="file"; filename="f"', b"x" * size)), headers=FORM
        )

    async with in_process(FakeEngine(), settings) as api:
        assert "100000 bytes" in check_error(await send(api.client, 100_001), 413, "file")
        check_error(await send(api.client, 300_000), 413)  # by its header alone
        made = [(await send(api.client, 100_000)).json()["id"] for _ in range(2)]
        assert "limit of 250000 bytes; delete some" in check_error(await send(api.client, 60_000), 413, "file")
        assert (await send(api.client, 50_000)).status_code == 200
        await api.client.delete(f"/v1/files/{made[0]}")
        assert (await send(api.client, 60_000)).status_code == 200
        for key in ("..%2Fobjects.sqlite", "objects.sqlite", "lock"):
            assert (await api.client.get(f"/v1/files/{key}/content")).status_code == 404
    async with in_process(FakeEngine(), settings) as api:  # which counts what it finds
        assert "limit of 250000 bytes" in check_error(await send(api.client, 60_000), 413, "file")


async def test_there_are_at_most_so_many_files(api, monkeypatch):
    monkeypatch.setattr("tessera.server.batches.storage.MAX_FILES", 2)
    for status in (200, 200, 400):
        response = await api.client.post("/v1/files", content=form(PURPOSE, FILE), headers=FORM)
        assert response.status_code == status
    assert "delete some" in check_error(response, 400, "file")


async def test_files_outlive_the_server_only_in_a_named_folder(tmp_path: Path):
    for settings, kept in ((ServerSettings(batch_store=str(tmp_path)), True), (ServerSettings(), False)):
        async with in_process(FakeEngine(), settings) as api:
            made = (await api.client.post("/v1/files", content=form(PURPOSE, FILE), headers=FORM)).json()
        left = [tmp_path / name for name in (f"file_{'0' * 48}.part", f"file_{'0' * 48}", "file_of_mine.txt")]
        for path in left:
            path.touch()
        async with in_process(FakeEngine(), settings) as api:
            assert (await api.client.get(f"/v1/files/{made['id']}")).is_success == kept
            assert [path.exists() for path in left] == [not kept, not kept, True]


async def test_a_full_disk_is_said_and_leaves_nothing(tmp_path: Path):
    (tmp_path / "file_x.part").symlink_to("/dev/full")
    storage = Storage("", 2**30)
    incoming = Incoming(storage, tmp_path / "file_x", 2**30)
    with pytest.raises(OverloadedError, match="cannot store this now"):
        await incoming.write(b"x" * 2**22)
    incoming.close()
    assert storage.used_bytes == 0
    storage.close()


def test_a_temporary_folder_goes_with_the_server():
    storage = Storage("", 1000)
    folder = storage.path("file").parent
    assert folder.is_dir()
    storage.close()
    assert not folder.exists()


def test_a_folder_is_of_one_server_alone(tmp_path: Path):
    first = Storage(str(tmp_path), 1000)
    with pytest.raises(ConfigError, match="is used by another server"):
        Storage(str(tmp_path), 1000)
    first.close()
    Storage(str(tmp_path), 1000).close()
    (tmp_path / "plain").touch()
    with pytest.raises(ConfigError, match="cannot be used: File exists"):
        Storage(str(tmp_path / "plain"), 1000)


# ---- the reader of forms ---------------------------------------------------------------------------------------------


def read(data: bytes, *cuts: int) -> list[tuple[FormPart, bytes]]:
    """The parts of a form that arrives in the pieces that end at `cuts`."""
    reader, parts, places = FormReader(FORM["Content-Type"].encode()), [], sorted({*cuts, len(data)})
    for begin, end in zip([0, *places], places, strict=False):
        for found in reader.feed(data[begin:end]):
            if isinstance(found, FormPart):
                parts.append((found, b""))
            elif found:
                parts[-1] = (parts[-1][0], parts[-1][1] + found)
    reader.end()
    return parts


CONTENTS = strategies.lists(
    strategies.lists(
        strategies.sampled_from([b"x", b"\r\n", b"--", b"b0undary", b"--b0undar", b"\r\n\r\n", b"\x00"])
    ).map(b"".join),
    min_size=1,
    max_size=3,
)


@hypothesis.given(CONTENTS, strategies.lists(strategies.integers(0, 400), max_size=8))
def test_a_form_is_read_the_same_however_it_is_cut(contents: list[bytes], cuts: list[int]) -> None:
    contents = [content for content in contents if b"\r\n--b0undary" not in b"\r\n" + content]
    hypothesis.assume(contents)
    data = form(*((f'name="{number}"', content) for number, content in enumerate(contents)))
    assert read(data, *(cut for cut in cuts if cut < len(data))) == [
        (FormPart(str(number), None), content) for number, content in enumerate(contents)
    ]


@pytest.mark.parametrize(
    "kind",
    [
        'multipart/form-data; boundary="b0undary"',
        "Multipart/Form-Data;charset=utf-8;BOUNDARY=b0undary",
        "multipart/form-data ; boundary=b0undary; x=y",
    ],
)
def test_a_boundary_may_be_written_so(kind: str) -> None:
    assert [*FormReader(kind.encode()).feed(form(PURPOSE))] == [FormPart("purpose", None), b"batch"]


@pytest.mark.parametrize("kind", ["", "multipart/form-data; boundary=", "multipart/mixed; boundary=x", "a/b"])
def test_without_a_boundary_there_is_no_form(kind: str) -> None:
    with pytest.raises(RequestError, match="with a boundary"):
        FormReader(kind.encode())


def test_what_httpx_writes_is_read() -> None:
    request = httpx.Request("POST", "http://x", data={"purpose": "batch"}, files={"file": ('q"ö\\.jsonl', LINES)})
    reader = FormReader(request.headers["Content-Type"].encode())
    request.read()
    names = [found for found in reader.feed(request.content) if isinstance(found, FormPart)]
    assert [part.name for part in names] == ["purpose", "file"]
    assert names[1].filename is not None
    assert "ö" in names[1].filename


async def test_the_document_says_what_the_form_has(api) -> None:
    document: dict[str, Any] = json.loads((await api.client.get("/openapi.json")).text)
    content = document["paths"][files.PATH]["post"]["requestBody"]["content"]
    assert set(content) == {"multipart/form-data"}
