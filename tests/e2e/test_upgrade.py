"""What earlier servers stored is served on, and batches that they left are ended. Each folder stored_N is what a server
of format N (tessera/server/database.py) left behind when it was killed: databases as SQL, and files as they were. Only
the times at which their open batches expire were put off."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import openai
import pytest

from tessera.server.database import FORMAT
from tests.e2e.served import Served
from tests.e2e.test_batches import until

STORED = Path(__file__).parent
KEYS = "keys: [{name: search, key: sk-search}, {name: night, key: sk-night}]"
RESPONSE = "resp_268fced1fed004ab9160e3351041ba304a80c1310a21e49b"
CONVERSATION = "conv_0adab2c6f96ef758fab391209e024f7ad8a0a0c33abfb851"
CHAT = "chatcmpl-e802f43f92c149778018a01ec7730563"
ENDED = "batch_3c76650e2c19165fd708fae71ee4bb36e192b112507d8d41"
OPEN = "batch_70801d584fdf4a350a1cbfd69f5c45abed50d6e09c39e958"


def restore(form: int, folder: Path) -> list[str]:
    """What a server of this format left, in a folder; the flags that name it."""
    stored, batches = STORED / f"stored_{form}", folder / "batches"
    batches.mkdir(parents=True)
    for name, database in (("responses.sql", folder / "responses"), ("objects.sql", batches / "objects.sqlite")):
        with closing(sqlite3.connect(database)) as connection:
            connection.execute("PRAGMA journal_mode=WAL")
            connection.executescript((stored / name).read_text(encoding="utf-8"))
            connection.commit()
    for file in stored.glob("file_*"):
        shutil.copy(file, batches)
    return ["--response-store", str(folder / "responses"), "--batch-store", str(batches)]


def check_stored(search: openai.OpenAI, night: openai.OpenAI) -> None:
    """Asks a server for all of it. search, night: clients with the keys that it belongs to."""
    assert search.responses.retrieve(RESPONSE).output_text == "The capital of France is Paris."
    after = search.responses.create(
        model="small", input="And 12 plus 30?", previous_response_id=RESPONSE, max_output_tokens=8
    )
    assert after.previous_response_id == RESPONSE
    (item,) = search.conversations.items.list(CONVERSATION).data
    assert item.to_dict()["content"][0]["text"] == "What is 12 plus 30?"
    assert search.chat.completions.retrieve(CHAT).choices[0].message.content == "12 plus 30 is 42."
    with pytest.raises(openai.NotFoundError):
        night.responses.retrieve(RESPONSE)
    ended = night.batches.retrieve(ENDED)
    assert (ended.status, ended.request_counts.completed) == ("completed", 3)
    assert len(night.files.content(ended.output_file_id).text.splitlines()) == 3
    done = until(night, OPEN, lambda batch: batch.status not in ("in_progress", "finalizing"))
    assert (done.status, done.request_counts.completed) == ("completed", 8)
    assert len(night.files.content(done.output_file_id).text.splitlines()) == 8


@pytest.mark.parametrize("form", range(FORMAT))
def test_what_an_earlier_server_stored_is_served(form: int, tmp_path: Path) -> None:
    keys = tmp_path / "keys.yaml"
    keys.write_text(KEYS)
    flags = [*restore(form, tmp_path / "stored"), "--served-model-name", "small", "--api-key-file", str(keys)]
    with (
        Served(flags, tmp_path / "log") as served,
        openai.OpenAI(base_url=f"{served.url}/v1", api_key="sk-search") as search,
        openai.OpenAI(base_url=f"{served.url}/v1", api_key="sk-night") as night,
    ):
        check_stored(search, night)
    assert "Traceback" not in (tmp_path / "log").read_text()
