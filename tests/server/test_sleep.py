"""Sleep over HTTP: with an engine in a process of its own, and who may do it."""

from __future__ import annotations

import asyncio
import dataclasses
import os

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tessera.server.key_file import KeyFile
from tessera.server.settings import ServerSettings
from tests.engine.fakes import answer
from tests.server.conftest import in_process
from tests.server.fake_engine import FakeEngine
from tests.server.test_engine_process import PROMPT, SETTINGS, serving, stopped
from tests.server.test_errors import check_error
from tests.server.test_lifecycle import until

pytestmark = pytest.mark.usefixtures("fakes_in_the_engines_process")

BODY = {"model": "fake", "prompt": PROMPT, "max_tokens": 8, "return_token_ids": True}
ON = dataclasses.replace(SETTINGS, sleep_mode=True, vllm_metrics=True)


async def sleep_states(client):
    families = text_string_to_metric_families((await client.get("/metrics")).text)
    (family,) = [family for family in families if family.name == "vllm:engine_sleep_state"]
    return {sample.labels["sleep_state"] for sample in family.samples if sample.value == 1}


async def test_a_server_sleeps_and_wakes_up():
    async with serving(settings=ON) as (engine, client, task):
        pid = engine.info.pid
        assert (await client.get("/is_sleeping")).json() == {"is_sleeping": False}
        assert await sleep_states(client) == {"awake"}
        response = await client.post("/sleep?level=1")
        assert (response.status_code, response.content) == (200, b"")
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
        assert (await client.get("/is_sleeping")).json() == {"is_sleeping": True}
        assert await sleep_states(client) == {"discard_all"}
        ready = await client.get("/readyz")
        assert (ready.status_code, ready.json()) == (503, {"status": "engine asleep"})
        assert (await client.get("/livez")).status_code == 200
        assert (await client.get("/v1/models")).json()["data"][0]["id"] == "fake"
        refused = await client.post("/v1/completions", json=BODY)
        check_error(refused, 503, code="engine_asleep", kind="overloaded_error")
        assert refused.json()["error"]["message"] == "The model sleeps. POST /wake_up wakes it up."
        assert refused.headers["retry-after"]
        assert (await client.post("/wake_up?tags=weights&tags=kv_cache")).status_code == 200
        assert (await client.get("/readyz")).status_code == 200
        whole = (await client.post("/v1/completions", json=BODY)).json()
        assert whole["choices"][0]["token_ids"] == answer(PROMPT, 8)
        await client.post("/sleep")
        assert await stopped(task) == 0, "asleep it ends in order too"


async def test_what_runs_is_ended_at_once_if_that_is_asked_for():
    async with serving("slow", settings=ON) as (engine, client, task):
        running = asyncio.create_task(client.post("/v1/completions", json={**BODY, "max_tokens": 4000}))
        await until(lambda: engine.metrics.stats.num_running == 1)
        assert (await client.post("/sleep?mode=abort")).status_code == 200
        check_error(await running, 503, code="engine_asleep", kind="overloaded_error")
        assert await stopped(task) == 0


async def test_what_the_query_may_say():
    async with in_process(FakeEngine(), ServerSettings(sleep_mode=True)) as api:
        for query, param in (("level=3", "level"), ("mode=keep", "mode")):
            check_error(await api.client.post(f"/sleep?{query}"), 400, param)
        check_error(await api.client.post("/wake_up?tags=weights"), 400, "tags")


async def test_only_where_the_operator_has_said_so():
    async with in_process(FakeEngine()) as api:
        for path in ("/sleep", "/wake_up"):
            response = await api.client.post(path)
            assert response.status_code == 404
            assert "--enable-sleep-mode" in response.text


async def test_with_a_file_of_keys_it_takes_an_admin(tmp_path):
    keys = tmp_path / "keys.yaml"
    keys.write_text("keys: [{name: operator, key: admin, admin: true}, {name: other, key: other}]")
    settings = ServerSettings(sleep_mode=True, key_file=KeyFile(str(keys)))
    async with in_process(FakeEngine(), settings) as api:
        for key, status in (("other", 403), ("admin", 200)):
            head = {"Authorization": f"Bearer {key}"}
            assert (await api.client.get("/is_sleeping", headers=head)).status_code == status
        head = {"Authorization": "Bearer other"}
        assert (await api.client.post("/sleep", headers=head)).status_code == 403
        assert (await api.client.post("/wake_up", headers=head)).status_code == 403
