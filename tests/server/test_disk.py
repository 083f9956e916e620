"""A disk that is full: what could not be stored is said, what was stored stays, and batches wait."""

from __future__ import annotations

import errno
import io
import json
import sqlite3
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from tessera.errors import ConfigError
from tessera.server.batches import storage as storages
from tessera.server.batches.protocol import LineError, ResultLine
from tessera.server.batches.results import BatchResults
from tessera.server.batches.storage import Storage
from tessera.server.database import FORMAT
from tessera.server.disk import DiskFullError, writing
from tessera.server.settings import ServerSettings
from tessera.server.store import Store
from tests.server.conftest import in_process
from tests.server.fake_engine import MODEL, FakeEngine
from tests.server.test_batches import begun, ended, line, serving
from tests.server.test_lifecycle import until

LARGE = "x" * 6000
METADATA = {str(number): "x" * 512 for number in range(16)}
"""More than a page of a database."""


def fill(store: Store) -> None:
    """No page more."""
    (pages,) = store._database.execute("PRAGMA page_count").fetchone()
    store._database.execute(f"PRAGMA max_page_count={pages}")


def free(store: Store) -> None:
    store._database.execute("PRAGMA max_page_count=1000000")


@pytest.fixture
def stores(monkeypatch):
    """Those that servers open, the newest last."""
    opened: list[Store] = []
    monkeypatch.setattr("tessera.server.app.Store", lambda *given: opened.append(Store(*given)) or opened[-1])
    return opened


async def test_an_answer_that_nobody_wants_kept_is_given_without(stores, tmp_path: Path, caplog):
    settings = ServerSettings(response_store=str(tmp_path / "store"))
    async with in_process(FakeEngine(), settings) as api:
        before = (await api.post("/v1/responses", {"model": MODEL, "input": "Hi"})).json()
        fill(stores[-1])
        asked = {"model": MODEL, "input": "Hi", "metadata": METADATA}
        given = (await api.post("/v1/responses", asked)).json()
        assert (given["status"], given["store"]) == ("completed", False)
        assert (await api.client.get(f"/v1/responses/{given['id']}")).status_code == 404
        streamed = await api.post("/v1/responses", {**asked, "stream": True})
        last = json.loads(streamed.text.rstrip().rpartition("data: ")[2])
        assert (last["type"], last["response"]["store"]) == ("response.completed", False)
        # What is there can be read and gone on with.
        assert (await api.client.get(f"/v1/responses/{before['id']}")).json() == before
        assert "cannot be stored: database or disk is full." in caplog.text
        assert "Traceback" not in caplog.text
        free(stores[-1])
        after = (await api.post("/v1/responses", {**asked, "previous_response_id": before["id"]})).json()
        assert after["store"]


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/responses", {"input": "Hi", "store": True}),
        ("/v1/responses", {"input": "Hi", "background": True}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}], "store": True}),
        ("/v1/conversations", {"items": []}),
    ],
)
async def test_what_a_client_wants_kept_is_refused(stores, tmp_path: Path, path, fields):
    settings = ServerSettings(response_store=str(tmp_path / "store"))
    async with in_process(FakeEngine(), settings) as api:
        fill(stores[-1])
        asked = {**fields, "metadata": METADATA} | ({} if path == "/v1/conversations" else {"model": MODEL})
        refused = await api.post(path, asked)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "storage_full")
        assert str(tmp_path) not in refused.text
        free(stores[-1])
        assert (await api.post(path, asked)).status_code == 200


async def test_an_object_is_changed_as_a_whole_or_not_at_all(tmp_path: Path):
    store = Store(str(tmp_path / "store"), 10**6)
    await store.put("conversation", "c", "", ["a"])
    fill(store)
    before = store._bytes
    with pytest.raises(DiskFullError):
        await store.change("conversation", "c", "", lambda kept: kept.append(LARGE))
    assert (await store.get("conversation", "c", ""), store._bytes) == (["a"], before)
    free(store)
    assert await store.change("conversation", "c", "", lambda kept: kept.append(LARGE)) == ["a", LARGE]
    store.close()


class FillingFile(io.FileIO):
    """room: bytes that it still takes, the last write in part."""

    room = 0

    def write(self, data):
        if not self.room:
            raise OSError(errno.ENOSPC, "No space left on device")
        taken = data[: self.room]
        self.room -= len(taken)
        return super().write(taken)


def test_a_result_is_written_whole_or_not_at_all(tmp_path: Path):
    path = tmp_path / "results"
    results = BatchResults(path, path)
    file = results._files[path] = FillingFile(path, "ab")
    file.room = 300
    for number in range(2):
        results.add(ResultLine(f"batch_req_{number}", str(number), None, LineError("no", "not run")))
    whole = path.read_bytes()
    long = ResultLine("batch_req_2", "2", None, LineError("no", "long" * 100))
    with pytest.raises(DiskFullError):
        results.add(long)
    assert (path.read_bytes(), results.size, len(results.done)) == (whole, len(whole), 2)
    file.room = 10**6
    results.add(long)
    results.close()
    assert [msgspec.json.decode(each)["custom_id"] for each in path.read_bytes().splitlines()] == ["0", "1", "2"]


async def test_a_batch_waits_until_the_disk_has_room(monkeypatch, caplog):
    full, add = [True], BatchResults.add

    def add_if_room(results, result):
        with writing("A result"):
            if full:
                raise OSError(errno.ENOSPC, "No space left on device")
        add(results, result)

    monkeypatch.setattr(storages, "_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(BatchResults, "add", add_if_room)
    async with serving(FakeEngine()) as (_, client):
        batch = await begun(client, line("a"))
        await until(lambda: "A result cannot be stored" in caplog.text)
        assert (await client.batches.retrieve(batch.id)).status == "in_progress"
        full.clear()
        batch = await ended(client, batch)
        assert (batch.status, batch.request_counts.completed) == ("completed", 1)


async def test_other_errors_of_a_disk_are_not_waited_for():
    storage = Storage("", 2**20)

    async def broken():
        with writing("A result"):
            raise OSError(errno.EIO, "Input/output error")

    with pytest.raises(OSError, match="Input/output"):
        await storage.until_written(broken)
    assert not storage.full
    storage.close()


def test_what_a_newer_server_wrote_is_left_alone(tmp_path: Path):
    path = tmp_path / "store"
    Store(str(path), 10**6).close()
    with closing(sqlite3.connect(path)) as database:
        database.execute(f"PRAGMA user_version={FORMAT + 1}")
    written = path.read_bytes()
    with pytest.raises(ConfigError, match=f"--response-store is of format {FORMAT + 1}, and .* knows {FORMAT}"):
        Store(str(path), 10**6)
    assert path.read_bytes() == written
