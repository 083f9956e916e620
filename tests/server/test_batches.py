"""Batches, by OpenAI's client and by hand; answers are held against its types."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import openai
import pytest
from openai.types import Batch
from openai.types.chat import ChatCompletion
from openai.types.responses import Response

from tessera.config.engine import SchedulerConfig
from tessera.engine.messages import EngineStats
from tessera.errors import EngineDeadError, EngineStepError
from tessera.server.batches import batches, runner
from tessera.server.batches.endpoints import LEAST_URGENT
from tessera.server.batches.storage import Storage
from tessera.server.settings import Limits, ServerSettings
from tests.server.conftest import Running, in_process, on_socket
from tests.server.fake_engine import MODEL, FakeEngine, Script
from tests.server.pooling_models import pooling_engine
from tests.server.test_errors import LEAKS, check_error

CHAT, COMPLETIONS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}]},
    COMPLETIONS: {"model": MODEL, "prompt": "Hi"},
    RESPONSES: {"model": MODEL, "input": "Hi"},
}
ENDED = {"completed", "failed", "cancelled", "expired"}


def line(custom_id: str, url: str = CHAT, method: str = "POST", **fields: Any) -> bytes:
    body = {**BODIES[url], **fields}
    return json.dumps({"custom_id": custom_id, "method": method, "url": url, "body": body}).encode() + b"\n"


def many(count: int) -> bytes:
    return b"".join(line(f"r{number}") for number in range(count))


def rows(engine: FakeEngine, count: int, policy: str = "fcfs") -> FakeEngine:
    """An engine whose platform has another default than the configuration."""
    engine.config = replace(engine.config, scheduler=SchedulerConfig(policy=policy))
    engine.info.max_num_seqs = count
    return engine


@asynccontextmanager
async def serving(
    engine: FakeEngine, settings: ServerSettings | None = None
) -> AsyncIterator[tuple[Running, openai.AsyncOpenAI]]:
    async with on_socket(engine, settings) as server, server.openai() as client:
        yield server, client


async def begun(client: openai.AsyncOpenAI, lines: bytes, endpoint: Any = CHAT, **more: Any) -> Batch:
    file = await client.files.create(file=("in.jsonl", lines), purpose="batch")
    made = await client.batches.create(input_file_id=file.id, endpoint=endpoint, completion_window="24h", **more)
    return checked(made)


def checked(batch: Batch) -> Batch:
    Batch.model_validate(batch.model_dump(), strict=True)
    return batch


async def ended(client: openai.AsyncOpenAI, batch: Batch) -> Batch:
    async with asyncio.timeout(20):
        while True:
            found = checked(await client.batches.retrieve(batch.id))
            if found.status in ENDED:
                return found
            await asyncio.sleep(0.01)


async def until(seen: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not seen():  # noqa: ASYNC110 - the engine tells nobody
            await asyncio.sleep(0.01)


async def results(client: openai.AsyncOpenAI, file_id: str | None) -> dict[str, dict[str, Any]]:
    """By custom_id; checks what all lines have in common."""
    if file_id is None:
        return {}
    found = [json.loads(text) for text in (await client.files.content(file_id)).text.splitlines()]
    for one in found:
        assert list(one) == ["id", "custom_id", "response", "error"]
        assert one["id"].startswith("batch_req_")
        assert (one["response"] is None) != (one["error"] is None)
        if one["response"] is not None:
            assert list(one["response"]) == ["status_code", "request_id", "body"]
    by_id = {one["custom_id"]: one for one in found}
    assert len(by_id) == len(found)
    return by_id


# ---- what runs -------------------------------------------------------------------------------------------------------


async def test_a_batch_is_answered_as_the_requests_alone_are():
    async with serving(FakeEngine()) as (server, client):
        alone = await client.chat.completions.create(**BODIES[CHAT], temperature=0.5)
        lines = line("a", temperature=0.5) + line("b", n=2) + line("bad", model="none") + line("worse", temperature=-1)
        batch = await begun(client, lines, metadata={"who": "me"})
        assert (batch.status, batch.endpoint, batch.metadata) == ("validating", CHAT, {"who": "me"})
        assert batch.expires_at == batch.created_at + 24 * 60 * 60
        batch = await ended(client, batch)
        assert batch.status == "completed"
        assert batch.created_at <= batch.in_progress_at <= batch.finalizing_at <= batch.completed_at
        assert batch.request_counts.model_dump() == {"total": 4, "completed": 2, "failed": 2}
        good, bad = await results(client, batch.output_file_id), await results(client, batch.error_file_id)
        assert (set(good), set(bad)) == ({"a", "b"}, {"bad", "worse"})
        answers = [ChatCompletion.model_validate(good[name]["response"]["body"]) for name in "ab"]
        assert answers[0].choices == alone.choices
        assert len(answers[1].choices) == 2
        assert answers[0].id == f"chatcmpl-{good['a']['response']['request_id']}"
        assert batch.usage.total_tokens == sum(answer.usage.total_tokens for answer in answers)
        assert batch.usage.output_tokens == sum(answer.usage.completion_tokens for answer in answers)
        assert [bad[name]["response"]["status_code"] for name in ("bad", "worse")] == [404, 400]
        over_http = await client.with_options(max_retries=0)._client.post(
            f"{server.url}{CHAT}", json={**BODIES[CHAT], "temperature": -1}
        )
        assert bad["worse"]["response"]["body"] == over_http.json()
        files = {one.id: one async for one in client.files.list(purpose="batch_output")}
        assert set(files) == {batch.output_file_id, batch.error_file_id}
        assert files[batch.output_file_id].filename == f"{batch.id}_output.jsonl"


@pytest.mark.parametrize("endpoint", [COMPLETIONS, RESPONSES])
async def test_the_other_endpoints_are_served_too(endpoint):
    async with serving(FakeEngine()) as (_, client):
        batch = await ended(client, await begun(client, line("a", endpoint), endpoint))
        assert (batch.status, batch.error_file_id) == ("completed", None)
        body = (await results(client, batch.output_file_id))["a"]["response"]["body"]
        assert batch.usage.output_tokens == 5
        if endpoint == RESPONSES:
            assert Response.model_validate(body).output_text == "Hello, wörld!"
        else:
            assert body["choices"][0]["text"] == "Hello, wörld!"


async def test_a_request_that_does_not_come_in_one_piece_is_refused():
    async with serving(FakeEngine()) as (server, client):
        lines = line("s", RESPONSES, stream=True) + line("b", RESPONSES, background=True)
        batch = await ended(client, await begun(client, lines + line("ok", RESPONSES, stream=False), RESPONSES))
        bad = await results(client, batch.error_file_id)
        said = [bad[name]["response"]["body"]["error"] for name in "sb"]
        assert [one["param"] for one in said] == ["stream", "background"]
        assert said[0]["message"] == "stream cannot be used in a batch; remove it."
        assert len(server.engine.calls) == 1


async def test_a_request_that_the_engine_fails_is_one_line(caplog):
    async with serving(FakeEngine(script=Script(error=EngineStepError("secret")))) as (_, client):
        batch = await ended(client, await begun(client, line("a")))
        assert (batch.status, batch.output_file_id) == ("completed", None)
        response = (await results(client, batch.error_file_id))["a"]["response"]
        assert (response["status_code"], response["body"]["error"]["type"]) == (500, "engine_error")
        assert "secret" not in str(response)


async def test_a_bug_ends_one_request_and_is_logged(caplog):
    async with serving(FakeEngine(script=Script(error=LookupError("secret")))) as (_, client):
        batch = await ended(client, await begun(client, many(2)))
        bad = await results(client, batch.error_file_id)
        assert [one["response"]["status_code"] for one in bad.values()] == [500, 500]
        assert "secret" not in str(bad)
        assert "secret" in caplog.text


async def test_each_line_of_results_is_one_line_for_every_reader():
    async with serving(FakeEngine(script=Script(pieces=("a\u2028b", "\x85", "\n")))) as (_, client):
        batch = await ended(client, await begun(client, line("a")))
        body = (await results(client, batch.output_file_id))["a"]["response"]["body"]
        assert body["choices"][0]["message"]["content"] == "a\u2028b\x85\n"


class Absent(FakeEngine):
    """An engine that is not there for its first requests."""

    times = 0

    def _admit(self) -> None:
        if len(self.calls) <= self.times:
            raise EngineDeadError("gone")
        super()._admit()


@pytest.mark.parametrize(("times", "failed"), [(runner.TRIES - 1, 0), (runner.TRIES, 1)])
async def test_a_request_that_finds_no_engine_is_tried_again(monkeypatch, times, failed):
    monkeypatch.setattr(runner, "PAUSE_SECONDS", 0)
    engine = Absent()
    engine.times = times
    async with serving(engine) as (_, client):
        batch = await ended(client, await begun(client, line("a")))
        assert batch.request_counts.failed == failed
        assert len(engine.calls) == runner.TRIES
        bad = await results(client, batch.error_file_id)
        assert [one["response"]["status_code"] for one in bad.values()] == [503] * failed


# ---- input that is wrong ---------------------------------------------------------------------------------------------

NO_ID = json.dumps({"method": "POST", "url": CHAT, "body": {}}).encode()
WRONG: list[tuple[bytes, str, str | None, str]] = [
    (b'{"custom_id": \n', "invalid_json_line", None, "The line is not valid JSON"),
    (b"\xff\n", "invalid_json_line", None, "The line"),
    (b"[]\n", "invalid_json_line", None, "The line: expected object, got list."),
    (NO_ID, "invalid_request", "custom_id", "custom_id is missing."),
    (NO_ID.replace(b"{", b'{"custom_id": 7, ', 1), "invalid_request", "custom_id", "custom_id: expected str, got int."),
    (line("ok"), "duplicate_custom_id", "custom_id", "The custom_id is that of line 1 too; each must be another."),
    (line(""), "invalid_custom_id", "custom_id", "custom_id must be 1 to 256 characters."),
    (line("x" * 257), "invalid_custom_id", "custom_id", "custom_id must be 1 to 256 characters."),
    (line("x", COMPLETIONS), "invalid_url", "url", "url must be the endpoint of the batch."),
    (line("x", method="GET"), "invalid_method", "method", "method must be POST."),
    (json.dumps({"custom_id": "x", "method": "POST", "url": CHAT, "body": []}).encode(),
     "invalid_request", "body", "body must be an object."),
    (line("x", user="x" * 5000), "invalid_request", "body", "body must be at most 4096 bytes."),
    (line("x", user="x" * 99_999), "invalid_request", None, "The line is longer than 4096 bytes."),
]  # fmt: skip


@pytest.mark.parametrize(("wrong", "code", "param", "message"), WRONG, ids=range(len(WRONG)))
async def test_what_is_wrong_with_a_file_is_said_by_its_line(wrong, code, param, message):
    async with serving(FakeEngine(), ServerSettings(limits=Limits(body_bytes=4096))) as (server, client):
        batch = await ended(client, await begun(client, b"\xef\xbb\xbf" + line("ok") + b"\r\n" + wrong))
        assert batch.status == "failed"
        assert batch.failed_at >= batch.created_at
        (error,) = batch.errors.data
        assert (error.code, error.line, error.param) == (code, 3, param)
        assert error.message.startswith(message)
        assert not LEAKS.search(error.message)
        assert not server.engine.calls


async def test_each_wrong_line_is_listed_up_to_a_limit():
    async with serving(FakeEngine()) as (_, client):
        batch = await ended(client, await begun(client, line("ok") + b"{\n" * 150))
        assert [error.line for error in batch.errors.data] == [*range(2, 102)]
        batch = await ended(client, await begun(client, b"\n\n"))
        assert [(error.code, error.line) for error in batch.errors.data] == [("empty_file", None)]


async def test_a_batch_has_at_most_so_many_requests():
    async with serving(FakeEngine(), ServerSettings(limits=Limits(batch_lines=3))) as (_, client):
        assert (await ended(client, await begun(client, many(3)))).status == "completed"
        (error,) = (await ended(client, await begun(client, many(4)))).errors.data
        assert (error.code, error.line, error.message) == ("too_many_tasks", 4, "A batch has at most 3 requests.")


ASKED = {"input_file_id": "file_x", "endpoint": CHAT, "completion_window": "24h"}
REFUSED: list[tuple[dict[str, Any], int, str, str]] = [
    ({"input_file_id": None}, 400, "input_file_id", "input_file_id: expected str, got null."),
    ({}, 404, "input_file_id", "The file does not exist."),
    (
        {"endpoint": "/v1/messages"},
        400,
        "endpoint",
        "endpoint must be one of /v1/chat/completions, /v1/completions, /v1/responses, /v1/embeddings",
    ),
    ({"completion_window": "1h"}, 400, "completion_window", "completion_window must be 24h."),
    ({"metadata": {str(n): "x" for n in range(17)}}, 400, "metadata", "at most 16 names"),
    ({"output_expires_after": {"anchor": "created_at", "seconds": 3600}}, 400, "output_expires_after", "remove it"),
]


@pytest.mark.parametrize(("fields", "status", "param", "reason"), REFUSED, ids=range(len(REFUSED)))
async def test_what_is_wrong_is_refused_by_name(api, fields, status, param, reason):
    response = await api.post("/v1/batches", {**ASKED, **fields})
    assert reason in check_error(response, status, param)


async def test_only_a_file_of_requests_is_run():
    async with serving(FakeEngine()) as (_, client):
        batch = await ended(client, await begun(client, line("a")))
        with pytest.raises(openai.BadRequestError, match="purpose must be batch"):
            await client.batches.create(input_file_id=batch.output_file_id, endpoint=CHAT, completion_window="24h")


# ---- lists, tenants, deletion ----------------------------------------------------------------------------------------


async def test_batches_come_in_pages_and_each_key_has_its_own():
    settings = ServerSettings(api_keys=("one", "two"))
    async with (
        on_socket(FakeEngine(), settings) as server,
        server.openai(api_key="one") as mine,
        server.openai(api_key="two") as other,
    ):
        made = [await ended(mine, await begun(mine, line("a"))) for _ in range(3)]
        assert [one.id async for one in mine.batches.list(limit=2)] == [one.id for one in reversed(made)]
        assert [call.tenant for call in server.engine.calls] == ["key 0"] * 3
        assert (await other.batches.list()).data == []
        file = await mine.files.create(file=("in.jsonl", line("a")), purpose="batch")
        for asking in (
            other.batches.retrieve(made[0].id),
            other.batches.cancel(made[0].id),
            other.files.content(made[0].output_file_id),
            other.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h"),
        ):
            with pytest.raises(openai.NotFoundError):
                await asking


@pytest.mark.parametrize(("query", "status", "param"), [("limit=101", 400, "limit"), ("after=x", 404, "after")])
async def test_a_page_has_limits(api, query, status, param):
    check_error(await api.client.get(f"/v1/batches?{query}"), status, param)


async def test_a_file_in_use_is_not_deleted():
    engine = FakeEngine(script=Script(hang_at=0))
    async with serving(engine) as (_, client):
        batch = await begun(client, line("a"))
        with pytest.raises(openai.BadRequestError, match="cancel it first"):
            await client.files.delete(batch.input_file_id)
        await client.batches.cancel(batch.id)
        await ended(client, batch)
        assert (await client.files.delete(batch.input_file_id)).deleted


async def test_there_are_at_most_so_many_batches(monkeypatch):
    monkeypatch.setattr("tessera.server.batches.jobs.MAX_OPEN", 1)
    monkeypatch.setattr("tessera.server.batches.jobs.MAX_ENDED", 2)
    async with serving(FakeEngine(script=Script(hang_at=0))) as (server, client):
        first = await begun(client, line("a"))
        with pytest.raises(openai.RateLimitError, match="that have not ended; wait"):
            await begun(client, line("a"))
        await client.batches.cancel(first.id)
        await ended(client, first)
        server.engine.script.hang_at = None
        later = [await ended(client, await begun(client, line("a"))) for _ in range(2)]
        assert [one.id for one in (await client.batches.list()).data] == [later[1].id, later[0].id]


# ---- cancelled and expired -------------------------------------------------------------------------------------------


async def test_a_cancelled_batch_ends_its_requests_and_keeps_its_results():
    engine = rows(FakeEngine(), 4)
    async with serving(engine) as (_, client):
        engine.script.hang_at = 0
        batch = await begun(client, line("slow") + many(5))
        await until(lambda: len(engine.running) == 2)
        engine.script.hang_at = None
        (first, _) = engine.running
        assert (await client.batches.cancel(batch.id)).status in ("cancelling", "cancelled")
        batch = await ended(client, batch)
        assert batch.status == "cancelled"
        assert batch.cancelling_at <= batch.cancelled_at
        assert not engine.running
        assert first in engine.aborted
        assert len(await results(client, batch.output_file_id)) == batch.request_counts.completed < 6
        with pytest.raises(openai.BadRequestError, match="its status is cancelled"):
            await client.batches.cancel(batch.id)


async def test_what_is_not_run_within_the_window_has_an_error(monkeypatch):
    monkeypatch.setattr(batches, "WINDOW_SECONDS", 1)
    engine = rows(FakeEngine(), 2)
    async with serving(engine) as (_, client):
        engine.script.hang_at = 2
        batch = await ended(client, await begun(client, many(3)))
        assert batch.status == "expired"
        assert batch.expired_at >= batch.expires_at
        bad = await results(client, batch.error_file_id)
        assert {one["error"]["code"] for one in bad.values()} == {"batch_expired"}
        assert (len(bad), batch.request_counts.failed, batch.output_file_id) == (3, 3, None)
        assert not engine.running


# ---- a restart -------------------------------------------------------------------------------------------------------


async def test_a_server_that_starts_again_goes_on_with_what_is_left(tmp_path: Path):
    settings = ServerSettings(batch_store=str(tmp_path))
    first, second = rows(FakeEngine(script=Script(delay=0.01)), 4), rows(FakeEngine(), 4)
    async with serving(first, settings) as (server, client):
        batch = await begun(client, many(20))
        await until(lambda: len(first.calls) > 7)
        first.script.hang_at = 0
        await settle()  # until those that had begun have ended, and two others hang
        found = await client.batches.retrieve(batch.id)
        assert (found.status, found.output_file_id) == ("in_progress", None)
        server.task.cancel()
        await asyncio.wait((server.task,))
    kept = cut_off(tmp_path)
    done = kept.count(b"\n")
    assert 0 < found.request_counts.completed <= done < 20
    async with serving(second, settings) as (_, client):
        batch = await ended(client, batch)
        assert (batch.status, batch.request_counts.completed) == ("completed", 20)
        good = await results(client, batch.output_file_id)
        assert set(good) == {f"r{number}" for number in range(20)}
        assert len(second.calls) == 20 - done
        assert batch.usage.output_tokens == 20 * 5
        assert (await client.files.content(batch.output_file_id)).content.startswith(kept)


def cut_off(folder: Path) -> bytes:
    """The results in a folder, behind which half a line is left."""
    (output,) = (path for path in folder.glob("file_*") if path.read_bytes().startswith(b'{"id":"batch_req_'))
    kept = output.read_bytes()
    output.write_bytes(kept + kept[:40])
    return kept


@pytest.mark.parametrize("restarting", [True, False])
async def test_an_engine_that_ends_fails_no_request(tmp_path: Path, restarting):
    settings = ServerSettings(batch_store=str(tmp_path))
    engine = FakeEngine(script=Script(hang_at=1))
    async with in_process(engine, settings) as api:
        made = await upload_and_begin(api, many(3))
        await until(lambda: len(engine.running) == 3)
        engine.health.restarting = restarting
        engine.die()
        await until(lambda: not engine.running)
        found = await status_of(api, made, "in_progress")
        assert found["request_counts"]["failed"] == 0
    async with in_process(FakeEngine(), settings) as api:
        found = await status_of(api, made, "completed")
        assert found["request_counts"] == {"total": 3, "completed": 3, "failed": 0}


async def status_of(api: Any, batch: dict[str, Any], wanted: str) -> dict[str, Any]:
    """The batch once it has this status."""
    async with asyncio.timeout(10):
        while True:
            found: dict[str, Any] = (await api.client.get(f"/v1/batches/{batch['id']}")).json()
            if found["status"] == wanted:
                return found
            await asyncio.sleep(0.01)


async def upload_and_begin(api: Any, lines: bytes) -> dict[str, Any]:
    form = {"files": {"file": ("in.jsonl", lines)}, "data": {"purpose": "batch"}}
    file = (await api.client.post("/v1/files", **form)).json()
    made: dict[str, Any] = (await api.post("/v1/batches", {**ASKED, "input_file_id": file["id"]})).json()
    return made


async def test_a_batch_that_was_being_cancelled_stays_so(tmp_path: Path, monkeypatch):
    settings = ServerSettings(batch_store=str(tmp_path))
    engine = FakeEngine(script=Script(hang_at=1))
    async with in_process(engine, settings) as api:
        made = await upload_and_begin(api, many(1))
        await until(lambda: bool(engine.running))
        monkeypatch.setattr("tessera.server.batches.jobs.Jobs._finish", lambda *_: asyncio.sleep(3600))
        cancelled = await api.post(f"/v1/batches/{made['id']}/cancel", b"")
        assert cancelled.json()["status"] == "cancelling"
        assert (await api.post(f"/v1/batches/{made['id']}/cancel", b"")).json()["status"] == "cancelling"
    monkeypatch.undo()
    async with in_process(FakeEngine(), settings) as api:
        await status_of(api, made, "cancelled")


async def test_a_failure_of_the_server_ends_the_batch_and_keeps_its_results(monkeypatch, caplog):
    def fail(*_: Any) -> None:
        raise OSError(5, "Input/output error", "/some/where")

    engine = FakeEngine()
    async with serving(engine) as (_, client):
        monkeypatch.setattr("tessera.server.batches.results.BatchResults.add", fail)
        batch = await ended(client, await begun(client, line("a")))
        assert (batch.status, batch.output_file_id) == ("failed", None)
        (error,) = batch.errors.data
        assert (error.code, LEAKS.search(error.message)) == ("server_error", None)
        assert "Input/output error" in caplog.text


# ---- idle room -------------------------------------------------------------------------------------------------------


async def settle() -> None:
    """Longer than requests take to be let in."""
    await asyncio.sleep(8 * runner.POLL_SECONDS)


async def test_a_batch_takes_half_of_the_rows_and_all_where_others_go_first():
    for policy, most in (("fcfs", 4), ("priority", 8)):
        engine = rows(FakeEngine(script=Script(hang_at=0)), 8, policy)
        async with serving(engine) as (_, client):
            batch = await begun(client, many(20))
            await until(lambda engine=engine, most=most: len(engine.running) == most)
            await settle()
            assert len(engine.running) == most
            assert {call.priority for call in engine.calls} == {LEAST_URGENT}
            await client.batches.cancel(batch.id)
            await ended(client, batch)


async def test_a_batch_leaves_the_room_that_others_use():
    engine = rows(FakeEngine(script=Script(hang_at=0)), 8)
    async with serving(engine) as (_, client):
        others = [asyncio.create_task(client.chat.completions.create(**BODIES[CHAT])) for _ in range(3)]
        await until(lambda: len(engine.running) == 3)
        await begun(client, many(20))
        await until(lambda: len(engine.running) == 4)
        await settle()
        assert len(engine.running) == 4
        for other in others:
            other.cancel()
        await until(lambda: [call.priority for call in engine.calls].count(LEAST_URGENT) == 4)
        await settle()
        assert len(engine.running) == 4
        with pytest.raises(openai.BadRequestError, match="priority must be a 32-bit integer"):
            await client.chat.completions.create(**BODIES[CHAT], extra_body={"priority": LEAST_URGENT})


BUSY: dict[str, Callable[[FakeEngine], None]] = {
    "waiting": lambda engine: setattr(engine.metrics, "stats", EngineStats(num_waiting=1)),
    "rows": lambda engine: setattr(engine.metrics, "stats", EngineStats(num_running=4)),
    "cache": lambda engine: setattr(engine.metrics, "stats", EngineStats(kv_usage=0.6)),
    "stalled": lambda engine: setattr(engine.health, "stalled", True),
    "dead": lambda engine: setattr(engine.health, "alive", False),
}


@pytest.mark.parametrize("why", BUSY)
async def test_a_batch_waits_while_the_engine_is_busy(why):
    engine = rows(FakeEngine(), 8)
    async with serving(engine) as (_, client):
        BUSY[why](engine)
        batch = await begun(client, many(2))
        await settle()
        assert not engine.calls
        assert (await client.batches.retrieve(batch.id)).status == "in_progress"
        engine.metrics.stats, engine.health.stalled, engine.health.alive = EngineStats(num_running=3), False, True
        assert (await ended(client, batch)).status == "completed"


async def test_a_batch_waits_while_there_is_no_room_for_results():
    """One more may begin while the result that fills the storage is being written."""
    lines, spare = many(6), b"x" * 10_000
    settings = ServerSettings(batch_store_bytes=len(lines) + len(spare) + 1)
    engine = rows(FakeEngine(), 1)
    async with serving(engine, settings) as (_, client):
        file = await client.files.create(file=("spare", spare), purpose="batch")
        batch = await begun(client, lines)
        await until(lambda: bool(engine.calls) and not engine.running)
        await settle()
        assert len(engine.calls) <= 2
        assert 1 <= (await client.batches.retrieve(batch.id)).request_counts.completed <= 2
        await client.files.delete(file.id)
        assert (await ended(client, batch)).request_counts.completed == 6


@pytest.mark.parametrize("servers", [1, 2])
async def test_the_storage_counts_what_lies_in_it(tmp_path: Path, monkeypatch, servers):
    """servers: the second one finds what the first has left."""
    made: list[Storage] = []
    monkeypatch.setattr("tessera.server.app.Storage", lambda *given: made.append(Storage(*given)) or made[-1])
    for _ in range(servers):
        async with serving(FakeEngine(), ServerSettings(batch_store=str(tmp_path))) as (server, client):
            batch = await ended(client, await begun(client, many(5) + line("bad", n=0)))
            server.engine.script.hang_at = 1
            other = await begun(client, many(3))
            await until(lambda engine=server.engine: bool(engine.running))
            await client.batches.cancel(other.id)
            await ended(client, other)
            assert made[-1].used_bytes == size_of(tmp_path)
            await client.files.delete(batch.output_file_id)
            assert made[-1].used_bytes == size_of(tmp_path) > 0


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("file_*"))


async def test_batches_take_turns():
    engine = rows(FakeEngine(script=Script(delay=0.002)), 2)
    async with serving(engine) as (_, client):
        long = await begun(client, many(60))
        await until(lambda: bool(engine.calls))
        short = await ended(client, await begun(client, many(3)))
        assert short.status == "completed"
        assert (await client.batches.retrieve(long.id)).status == "in_progress"
        assert (await ended(client, long)).request_counts.completed == 60


async def test_what_a_batch_is_doing_is_logged_by_its_id(caplog):
    caplog.set_level(logging.INFO, "tessera")
    async with serving(FakeEngine()) as (_, client):
        batch = await ended(client, await begun(client, many(2)))
    assert f"Batch {batch.id} is completed: 2 requests, 0 of them failed." in caplog.text


# ---- models that answer with numbers ---------------------------------------------------------------------------------


async def test_embeddings_scores_and_ranks_run_in_batches():
    bodies = {
        "/v1/embeddings": {"input": ["Hi", "there"]},
        "/v1/score": {"text_1": "Hi", "text_2": ["a", "b"]},
        "/v1/rerank": {"query": "Hi", "documents": ["a", "b"]},
    }
    async with serving(pooling_engine()) as (_, client):
        for url, body in bodies.items():
            made = {"custom_id": "a", "method": "POST", "url": url, "body": {"model": MODEL, **body}}
            batch = await ended(client, await begun(client, json.dumps(made).encode(), url))
            assert batch.request_counts.completed == 1
            (one,) = (await results(client, batch.output_file_id)).values()
            answer = one["response"]["body"]
            assert len(answer["results" if url == "/v1/rerank" else "data"]) == 2
            assert batch.usage.input_tokens == answer["usage"]["prompt_tokens"] > 0
