"""The file of API keys with names and limits: what each key may do, and how the file is read, again too."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import signal

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tessera.errors import ConfigError
from tessera.server.key_file import KeyFile
from tessera.server.quotas import span
from tessera.server.rate_bucket import RateBucket
from tessera.server.settings import ServerSettings
from tests.server.conftest import in_process, on_socket
from tests.server.fake_engine import MODEL, FakeEngine, Script
from tests.server.test_errors import check_error
from tests.server.test_lifecycle import until

CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}]}


@pytest.fixture
def keys(tmp_path):
    """Writes the file, and reads it into settings."""

    def write(*entries, **settings):
        path = tmp_path / "keys.json"
        path.write_text(json.dumps({"keys": entries}))
        return ServerSettings(key_file=KeyFile(str(path)), drain_seconds=0.1, **settings)

    return write


def bearer(key):
    return {"Authorization": f"Bearer {key}"}


def by_key(text):
    """The values of metrics that have a label `key`, by name and key."""
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    return {
        (sample.name.removeprefix("tessera:key_"), sample.labels["key"]): sample.value
        for sample in samples
        if "key" in sample.labels
    }


# ---- the file --------------------------------------------------------------------------------------------------------


def test_a_file_in_yaml_says_what_each_key_may_do(tmp_path):
    hashed = hashlib.sha256(b"second-key").hexdigest()
    path = tmp_path / "keys.yaml"
    path.write_text(
        f"""# teams
keys:
  - {{name: search, key: first-key, requests_per_minute: 60, tokens_per_minute: 1000, models: [a, b]}}
  - name: batch.team
    sha256: {hashed.upper()}
    concurrent_requests: 2
    admin: true
"""
    )
    file = KeyFile(str(path), concurrent_requests=7)
    first, second = file.keys
    assert (first.name, first.tenant, first.models, first.admin) == ("search", "search", {"a", "b"}, False)
    assert vars(first.quota) == {"requests_per_minute": 60, "tokens_per_minute": 1000, "concurrent_requests": 7}
    assert (second.name, second.models, second.admin) == ("batch.team", None, True)
    assert second.quota.concurrent_requests == 2
    assert file.by_digest[hashlib.sha256(b"second-key").digest()] is second
    assert "first-key" not in repr(file.keys)


WRONG = {
    "": "Expected `object`, got `null`",
    "keys: []": "Expected `array` of length >= 1 - at `$.keys`",
    "keys: [{name: a, key: k": "invalid YAML: ",
    "keys: [{name: a, key: k, rpm: 3}]": "unknown field `rpm` - at `$.keys[0]`",
    "keys: [{name: a, key: 123}]": "Expected `str | null`, got `int` - at `$.keys[0].key`",
    "keys: [{name: a b, key: k}]": "`$.keys[0].name`",
    "keys: [{name: a, sha256: abc}]": "`$.keys[0].sha256`",
    "keys: [{name: a, key: k, requests_per_minute: 0}]": "`int` >= 1 - at `$.keys[0].requests_per_minute`",
    "keys: [{name: a}]": "'a' needs either key or sha256",
    "keys: [{name: a, key: k}, {name: a, key: l}]": "'a' has the name of another entry",
    "keys: [{name: a, key: k}, {name: b, key: k}]": "'b' has the key of another entry",
    "keys: [{name: a, key: !!python/object:os.system k}]": "could not determine a constructor",
}


@pytest.mark.parametrize("text", WRONG)
def test_a_wrong_file_is_refused_in_one_line(tmp_path, text):
    path = tmp_path / "keys.yml"
    path.write_text(text)
    with pytest.raises(ConfigError) as refused:
        KeyFile(str(path))
    assert WRONG[text] in refused.value.message
    assert refused.value.message.startswith(f"--api-key-file '{path}'")
    assert "\n" not in refused.value.message


@pytest.mark.parametrize(("content", "what"), [(b"{", "not valid YAML or JSON"), (b"x" * (2**22 + 1), "larger than")])
def test_a_file_that_is_none_is_refused(tmp_path, content, what):
    path = tmp_path / "keys.json"
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        KeyFile(str(path))
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=what):
        KeyFile(str(path))


async def test_sighup_reads_the_file_again_and_keeps_the_keys_of_one_that_is_wrong(keys, tmp_path, caplog):
    caplog.set_level("INFO", "tessera")
    settings, path = keys({"name": "a", "key": "old", "requests_per_minute": 3}), tmp_path / "keys.json"
    async with on_socket(FakeEngine(), settings) as server, httpx.AsyncClient(base_url=server.url) as http:

        async def status(key):
            return (await http.get("/v1/models", headers=bearer(key))).status_code

        async def reload(text, line):
            path.write_text(text)
            os.kill(os.getpid(), signal.SIGHUP)
            await until(lambda: line in caplog.text)

        assert (await status("old"), await status("new")) == (200, 401)
        await reload("{}", "The keys stay as they were: --api-key-file")
        assert (await status("old"), await status("new")) == (200, 401)
        await reload('{"keys": [{"name": "a", "key": "new", "requests_per_minute": 4}]}', "Read 1 keys from")
        assert (await status("old"), await status("new")) == (401, 200)
        # What the key has used is its own, whatever becomes of its secret.
        assert (await status("new"), await status("new")) == (200, 429)
        assert not server.task.done()


# ---- quotas ----------------------------------------------------------------------------------------------------------


def test_a_rate_comes_back_evenly_and_may_be_overdrawn():
    now = 0.0
    bucket = RateBucket(60, lambda: now)
    bucket.take(60)
    assert (bucket.remaining, bucket.seconds_until(1), bucket.seconds_until_full) == (0, 1.0, 60.0)
    now = 10.0
    assert (bucket.remaining, bucket.seconds_until(10), bucket.seconds_until(11)) == (10, 0.0, 1.0)
    bucket.take(40)
    assert (bucket.remaining, bucket.seconds_until(0), bucket.seconds_until_full) == (0, 30.0, 90.0)
    # More than it ever holds waits until it is full.
    assert bucket.seconds_until(1000) == 90.0
    bucket.change_limit(120)
    assert (bucket.seconds_until(30), bucket.seconds_until_full) == (0.0, 45.0)
    now = 1000.0
    assert bucket.remaining == 120
    bucket.change_limit(6)
    assert bucket.remaining == 6


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0ms"), (0.0201, "21ms"), (1, "1s"), (59.2, "1m0s"), (12.2, "13s"), (360, "6m0s")]
)
def test_spans_of_time_are_written_as_openai_writes_them(seconds, text):
    assert span(seconds) == text


async def test_requests_a_minute_are_counted_by_key(keys):
    settings = keys({"name": "a", "key": "ka", "requests_per_minute": 2}, {"name": "b", "key": "kb"})
    async with in_process(FakeEngine(), settings) as api:
        answers = [await api.client.post("/v1/chat/completions", json=CHAT, headers=bearer("ka")) for _ in range(3)]
        assert [answer.status_code for answer in answers] == [200, 200, 429]
        assert [answer.headers["x-ratelimit-remaining-requests"] for answer in answers] == ["1", "0", "0"]
        assert {answer.headers["x-ratelimit-limit-requests"] for answer in answers} == {"2"}
        assert "x-ratelimit-limit-tokens" not in answers[0].headers
        message = check_error(answers[2], 429, code="rate_limit_exceeded", kind="rate_limit_error")
        assert message == "This API key is at its limit of 2 requests a minute; try again in 30 s."
        assert answers[2].headers["retry-after"] == "30"
        assert (await api.client.get("/ping", headers=bearer("ka"))).status_code == 200
        other = await api.client.post("/v1/chat/completions", json=CHAT, headers=bearer("kb"))
        assert other.status_code == 200
        assert not [name for name in other.headers if name.startswith("x-ratelimit")]


@pytest.mark.parametrize("stream", [False, True])
async def test_tokens_of_prompts_and_answers_are_counted_as_they_come(keys, stream):
    engine = FakeEngine(script=Script(pieces=["x"] * 30))
    async with in_process(engine, keys({"name": "a", "key": "ka", "tokens_per_minute": 50})) as api:
        body = {"model": MODEL, "prompt": [1] * 25, "stream": stream}
        first = await api.client.post("/v1/completions", json=body, headers=bearer("ka"))
        assert first.status_code == 200
        assert first.headers["x-ratelimit-limit-tokens"] == "50"
        # 16 tokens, which completions have by default, are out of the quota for a short while.
        second = await api.client.post("/v1/completions", json=body, headers=bearer("ka"))
        message = check_error(second, 429, code="rate_limit_exceeded", kind="rate_limit_error")
        assert message.startswith("This API key is at its limit of 50 tokens a minute; try again in ")
        assert int(second.headers["retry-after"]) in range(15, 21)
        short = await api.client.post("/v1/completions", json={**body, "prompt": [1] * 5}, headers=bearer("ka"))
        assert short.status_code == 200
        # It had more than there was, and all others wait until that has come back.
        embed = await api.client.post("/v1/completions", json={**body, "prompt": [1]}, headers=bearer("ka"))
        assert embed.status_code == 429
        assert engine.running == set()


async def test_a_prompt_beyond_the_quota_runs_when_nothing_else_was_taken(keys):
    async with in_process(FakeEngine(), keys({"name": "a", "key": "ka", "tokens_per_minute": 10})) as api:
        body = {"model": MODEL, "prompt": [1] * 40}
        statuses = [
            (await api.client.post("/v1/completions", json=body, headers=bearer("ka"))).status_code for _ in range(2)
        ]
        assert statuses == [200, 429]


async def test_requests_in_progress_are_limited_by_key(keys):
    engine = FakeEngine(script=Script(hang_at=0))
    settings = keys({"name": "a", "key": "ka", "concurrent_requests": 1})
    async with (
        on_socket(engine, settings) as server,
        httpx.AsyncClient(base_url=server.url, headers=bearer("ka")) as http,
    ):
        asking = asyncio.create_task(http.post("/v1/chat/completions", json=CHAT))
        await until(lambda: engine.running)
        message = check_error(await http.get("/v1/models"), 429, kind="rate_limit_error", code="rate_limit_exceeded")
        assert "1 requests in progress" in message
        asking.cancel()
        await asyncio.wait([asking])
        await until(lambda: not engine.running)
        assert (await http.get("/v1/models")).status_code == 200


async def test_what_each_key_has_used_is_in_the_metrics_by_its_name(keys):
    settings = keys(
        {"name": "a", "key": "ka", "requests_per_minute": 1}, {"name": "b", "key": "kb"}, {"name": "c", "key": "kc"}
    )
    async with in_process(FakeEngine(script=Script(pieces=["x"] * 3)), settings) as api:
        for key in ("ka", "ka", "kb"):
            await api.client.post("/v1/completions", json={"model": MODEL, "prompt": [1] * 4}, headers=bearer(key))
        await api.client.get("/v1/models", headers=bearer("none"))
        values = by_key((await api.client.get("/metrics", headers=bearer("kb"))).text)
        assert {values["requests_total", key] for key in "ab"} == {1, 2}
        assert (values["requests_refused_total", "a"], values["requests_refused_total", "b"]) == (1, 0)
        assert (values["prompt_tokens_total", "b"], values["generation_tokens_total", "b"]) == (4, 3)
        assert (values["requests_in_progress", "a"], values["requests_in_progress", "b"]) == (0, 1)
        assert (values["requests_total", "c"], len(values)) == (0, 15)


async def test_a_server_without_names_has_neither_headers_nor_metrics_of_keys():
    async with in_process(FakeEngine(), ServerSettings(api_keys=("k",))) as api:
        response = await api.client.get("/metrics", headers=bearer("k"))
        assert "key_requests" not in response.text
        assert not [name for name in response.headers if name.startswith("x-ratelimit")]


# ---- models ----------------------------------------------------------------------------------------------------------


async def test_a_key_has_the_models_that_it_is_allowed_alone(keys):
    names = (MODEL, "other")
    settings = keys({"name": "a", "key": "ka", "models": ["other"]}, served_model_names=names)
    async with in_process(FakeEngine(), settings) as api:
        api.client.headers.update(bearer("ka"))
        assert [card["id"] for card in (await api.client.get("/v1/models")).json()["data"]] == ["other"]
        assert [one["name"] for one in (await api.client.get("/api/tags")).json()["models"]] == ["other:latest"]
        assert (await api.chat(model="other")).status_code == 200
        refusals = [
            await api.chat(),
            await api.complete(),
            await api.client.post("/v1/completions", json={"prompt": "Hi"}),  # the first model
            await api.client.post("/tokenize", json={"model": MODEL, "prompt": "Hi"}),
            await api.client.post("/detokenize", json={"model": MODEL, "tokens": [1]}),
            await api.client.get(f"/v1/models/{MODEL}"),
        ]
        for response in refusals:
            message = check_error(response, 403, "model", "model_not_found")
            assert message == f"This API key may not use the model `{MODEL}`; /v1/models lists those that it may."
        check_error(await api.chat(model="none"), 404, "model", "model_not_found")
        assert [call.tenant for call in api.engine.calls] == ["a"]


async def test_the_lines_of_a_batch_have_the_models_of_their_key(keys):
    settings = keys({"name": "a", "key": "ka", "models": ["other"]}, served_model_names=(MODEL, "other"))
    async with on_socket(FakeEngine(), settings) as server, server.openai(api_key="ka") as client:
        lines = [
            {"custom_id": model, "method": "POST", "url": "/v1/chat/completions", "body": {**CHAT, "model": model}}
            for model in settings.served_model_names
        ]
        data = "\n".join(map(json.dumps, lines)).encode()
        file = await client.files.create(file=("in.jsonl", data), purpose="batch")
        batch = await client.batches.create(
            input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
        )
        while batch.status != "completed":
            await asyncio.sleep(0.01)
            batch = await client.batches.retrieve(batch.id)
        assert (batch.request_counts.completed, batch.request_counts.failed) == (1, 1)
