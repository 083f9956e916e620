"""Several models by name: loaded when they are asked for, within limits, and unloaded without cutting anyone off."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import httpx
import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families
from safetensors.numpy import save_file

from tessera.config.engine import LoraConfig
from tessera.errors import ModelError
from tessera.server.adapters import LOAD, UNLOAD
from tessera.server.batches import runner
from tessera.server.context import ServerState
from tessera.server.key_file import KeyFile
from tessera.server.on_demand import hosted_models, hosted_room
from tessera.server.on_demand.app import create_app, loaded_app
from tessera.server.on_demand.hosted_model import HostedEntry, LoadedHost
from tessera.server.on_demand.hosted_models import HostedModels
from tessera.server.settings import OnDemandRules, ServerSettings
from tessera.server.store import Store
from tests.server.fake_engine import FakeEngine, Script
from tests.server.test_errors import check_error
from tests.server.test_lifecycle import until

CHAT, PROMPTS = "/v1/chat/completions", "/v1/completions"


@dataclass
class FakeModel:
    """One entry. seconds: that loading takes. engines: all that were started, the newest last."""

    name: str
    server: Several
    size: int = 10
    seconds: float = 0.0
    error: Exception | None = None
    wrong: Exception | None = None
    script: Script = field(default_factory=Script)
    lora: bool = False
    engines: list[FakeEngine] = field(default_factory=list)

    async def configure(self):
        if self.wrong is not None:
            raise self.wrong
        return self

    async def plan(self):
        return self.size

    async def load(self, copies):
        await asyncio.sleep(self.seconds)
        if self.error is not None:
            raise self.error
        engine = FakeEngine(script=self.script)
        engine.config = replace(engine.config, lora=LoraConfig(enable=self.lora))
        self.engines.append(engine)
        settings = replace(self.server.settings, served_model_names=(self.name,))
        app = loaded_app(engine, settings, self.server.state, self.server.store, copies)
        return LoadedHost(engine, app, engine.shutdown)

    @property
    def runs(self):
        return bool(self.engines) and self.engines[-1].health.alive


class Several:
    """A server of fake models."""

    def __init__(self, names, rules, settings):
        self.state, self.store, self.settings = ServerState(), Store("", 2**20), settings
        self.fakes = {name: FakeModel(name, self) for name in names}
        self.hosted = HostedModels([HostedEntry(name, fake.configure) for name, fake in self.fakes.items()], rules)
        self.app = create_app(self.hosted, settings, self.state, self.store)

    async def chat(self, name, **fields):
        messages = [{"role": "user", "content": "Hi"}]
        return await self.client.post(CHAT, json={"model": name, "messages": messages, **fields})

    @property
    def running(self):
        return {name for name, fake in self.fakes.items() if fake.runs}


@asynccontextmanager
async def several(names="abc", settings=None, **rules):
    server = Several(names, OnDemandRules(**rules), settings or ServerSettings())
    transport = httpx.ASGITransport(server.app, raise_app_exceptions=False)
    async with (
        server.app.router.lifespan_context(server.app),
        httpx.AsyncClient(transport=transport, base_url="http://test") as server.client,
    ):
        yield server
        await server.hosted.shutdown()
    assert server.running == set()


# ---- loading ---------------------------------------------------------------------------------------------------------


async def test_a_model_is_loaded_once_for_all_who_ask_for_it():
    async with several() as server:
        server.fakes["b"].seconds = 0.05
        answers = await asyncio.gather(*(server.chat("b") for _ in range(5)), server.chat("a"))
        assert [answer.json()["model"] for answer in answers] == ["b"] * 5 + ["a"]
        assert server.running == {"a", "b"}
        assert [len(fake.engines) for fake in server.fakes.values()] == [1, 1, 0]
        check_error(await server.chat("d"), 404, "model", "model_not_found")


async def test_those_used_least_recently_make_room():
    async with several("abcd", max_loaded=2) as server:
        for name, running in (("a", "a"), ("b", "ab"), ("a", "ab"), ("c", "ac"), ("d", "cd"), ("c", "cd")):
            assert (await server.chat(name)).status_code == 200
            assert server.running == set(running)


async def test_memory_is_counted_as_planned():
    async with several("abc", memory_bytes=2**20) as server:
        for name, size in (("a", 2**19), ("b", 2**19), ("c", 2**19 + 1)):
            server.fakes[name].size = size
            await server.chat(name)
        assert server.running == {"c"}
        server.fakes["a"].size = 2**20 + 1
        check_error(await server.chat("a"), 503, "model", "model_not_loaded", "overloaded_error")
        assert server.running == {"c"}, "nobody goes for one that never has room"


async def test_a_stream_is_never_cut_for_another_model(monkeypatch):
    monkeypatch.setattr(hosted_models, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(hosted_models, "PATIENCE_SECONDS", 0.05)
    async with several("ab", max_loaded=1) as server:
        server.fakes["a"].script = Script(pieces=["x"] * 60, delay=0.01)
        streaming = asyncio.create_task(server.chat("a", stream=True))
        await until(lambda: server.fakes["a"].engines and server.fakes["a"].engines[0].running)
        other = asyncio.create_task(server.chat("b"))
        await until(lambda: server.hosted.models["a"].leaving)
        late = asyncio.create_task(server.chat("a", stream=True))
        assert '"finish_reason":"stop"' in (await streaming).text
        assert (await other).status_code == 200
        # Who came late has the model again, after the one that waited.
        assert '"finish_reason":"stop"' in (await late).text
        assert [len(fake.engines) for fake in server.fakes.values()] == [2, 1]


async def test_who_waits_too_long_is_told_to_come_back():
    async with several(start_seconds=0.1) as server:
        server.fakes["a"].seconds = 0.3
        response = await server.chat("a")
        message = check_error(response, 503, "model", "model_not_loaded", "overloaded_error")
        assert message == "The model `a` is not loaded yet; try again."
        assert response.headers["retry-after"] == "1"
        await until(lambda: server.running == {"a"})
        assert (await server.chat("a")).status_code == 200


async def test_one_that_fails_harms_no_other_and_is_tried_again(monkeypatch, caplog):
    async with several(max_loaded=1) as server:
        await server.chat("a")
        server.fakes["b"].wrong = ModelError("There is no folder '/secret/place'.")
        response = await server.chat("b")
        message = check_error(response, 503, "model", "model_not_loaded", "overloaded_error")
        assert message == "The model `b` could not be loaded; the server's log says why."
        assert int(response.headers["retry-after"]) in range(1, 31)
        assert server.running == {"a"}
        assert caplog.text.count("b could not be loaded: There is no folder '/secret/place'.") == 1
        check_error(await server.chat("b"), 503, "model", "model_not_loaded", "overloaded_error")
        assert server.hosted.models["b"].num_failures == 1
        monkeypatch.setattr(hosted_models, "RETRY_SECONDS", 0.0)
        server.fakes["b"].wrong, server.fakes["b"].error = None, RuntimeError("a bug")
        monkeypatch.setattr(hosted_models, "RETRY_SECONDS", 30.0)
        server.hosted.models["b"].failure = None
        check_error(await server.chat("b"), 503, "model", "model_not_loaded", "overloaded_error")
        server.hosted.models["b"].failure, server.fakes["b"].error = None, None
        assert (await server.chat("b")).status_code == 200


async def test_a_model_whose_engine_dies_is_loaded_anew():
    async with several() as server:
        await server.chat("a")
        server.fakes["a"].engines[0].die()
        await until(lambda: server.hosted.models["a"].state == "unloaded")
        assert (await server.chat("a")).status_code == 200
        assert len(server.fakes["a"].engines) == 2


async def test_a_model_that_nobody_uses_goes_after_a_time(monkeypatch):
    monkeypatch.setattr(hosted_models, "LOOK_SECONDS", 0.01)
    async with several(idle_seconds=0.15) as server:
        server.fakes["b"].script = Script(pieces=["x"] * 60, delay=0.01)
        await server.chat("a")
        assert '"finish_reason":"stop"' in (await server.chat("b", stream=True)).text
        assert server.running == {"b"}
        await until(lambda: server.running == set())


async def test_a_client_that_leaves_waits_no_longer():
    async with several() as server:
        server.fakes["a"].seconds = 0.2
        scope = {"type": "http", "method": "POST", "path": CHAT, "headers": [(b"content-type", b"application/json")]}
        messages = iter([{"type": "http.request", "body": b'{"model": "a"}', "more_body": False}])

        async def receive():
            return next(messages, {"type": "http.disconnect"})

        async def send(_message):
            raise AssertionError("nobody is there")

        await asyncio.wait_for(server.app({**scope, "query_string": b""}, receive, send), 0.15)
        assert server.hosted.models["a"].num_waiting == 0


# ---- requests --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "body", "name"),
    [
        ("/v1/completions", {"model": "b", "prompt": "Hi"}, "b"),
        ("/completion_of_none", {"model": "b"}, "b"),
        ("/v1/completions", {"prompt": "Hi"}, "a"),
        ("/v1/messages", {"model": "c", "max_tokens": 3, "messages": [{"role": "user", "content": "Hi"}]}, "c"),
        ("/v1/responses", {"model": "c", "input": "Hi"}, "c"),
        ("/api/chat", {"model": "b:latest", "messages": [{"role": "user", "content": "Hi"}], "stream": False}, "b"),
        ("/api/show", {"name": "c"}, "c"),
        ("/tokenize", {"model": "b", "prompt": "Hi"}, "b"),
    ],
)
async def test_a_body_says_which_model_is_meant(path, body, name):
    async with several() as server:
        response = await server.client.post(path, json=body)
        assert response.status_code in (200, 404), response.text
        assert server.running == {name}


async def test_a_form_says_it_too():
    async with several() as server:
        form = {"model": (None, "b"), "file": ("a.wav", b"RIFF")}
        response = await server.client.post("/v1/audio/transcriptions", files=form)
        assert "does not write down speech" in check_error(response, 400, "model")
        assert server.running == {"b"}


@pytest.mark.parametrize("path", ["/robots.txt", "/v1/nothing", "/docs"])
async def test_who_looks_around_loads_nothing(path):
    async with several() as server:
        check_error(await server.client.get(path), 404, code="unknown_url")
        for content in (b"{", b"[]", b'{"model": 3}'):
            headers = {"Content-Type": "application/json"}
            response = await server.client.post("/v1/completions", content=content, headers=headers)
            assert response.status_code == 400
        assert server.running == set()


async def test_what_is_kept_outlives_a_model():
    async with several(max_loaded=1) as server:
        kept = (await server.client.post("/v1/responses", json={"model": "b", "input": "Hi"})).json()["id"]
        await server.chat("c")
        again = await server.client.get(f"/v1/responses/{kept}")
        assert again.json()["id"] == kept
        assert server.running == {"a"}, "the first one gives it back"


async def test_models_are_listed_with_their_state():
    async with several() as server:
        server.fakes["c"].wrong = ModelError("There is none.")
        await server.chat("b")
        await server.chat("c")
        cards = (await server.client.get("/v1/models")).json()["data"]
        assert [(card["id"], card["state"]) for card in cards] == [("a", "unloaded"), ("b", "loaded"), ("c", "failed")]
        assert ["max_model_len" in card for card in cards] == [False, True, False]
        assert (await server.client.get("/v1/models/b")).json() == cards[1]
        check_error(await server.client.get("/v1/models/d"), 404, "model", "model_not_found")
        named = {
            path: {
                one["model"]: one["details"]["quantization_level"]
                for one in (await server.client.get(path)).json()["models"]
            }
            for path in ("/api/tags", "/api/ps")
        }
        assert [*named["/api/tags"]] == ["a:latest", "b:latest", "c:latest"]
        assert [*named["/api/ps"]] == ["b:latest"]
        assert named["/api/tags"]["a:latest"] == "" != named["/api/ps"]["b:latest"]
        for path in ("/livez", "/readyz", "/health", "/ping", "/version", "/load", "/", "/models", "/api/version"):
            assert (await server.client.get(path)).status_code == 200


async def test_metrics_have_each_name_once_with_all_models():
    async with several(settings=ServerSettings(vllm_metrics=True)) as server:
        for name in ("a", "b", "b"):
            await server.chat(name)
        text = (await server.client.get("/metrics")).text
        heads = [line.split()[2] for line in text.splitlines() if line.startswith("# TYPE ")]
        assert len(heads) == len(set(heads))
        families = {family.name: family for family in text_string_to_metric_families(text)}
        running = families["tessera:num_requests_running"].samples
        assert {sample.labels["model_name"] for sample in running} == {"a", "b"}
        loaded = families["tessera:model_loaded"].samples
        assert {sample.labels["model_name"]: sample.value for sample in loaded} == {"a": 1, "b": 1, "c": 0}
        asked = families["tessera:http_requests"].samples
        counts = {sample.labels["handler"]: sample.value for sample in asked if sample.name.endswith("_total")}
        assert counts[CHAT] == 3


async def test_keys_have_their_models_and_quotas(tmp_path):
    path = tmp_path / "keys.json"
    keys = [{"name": "one", "key": "one", "models": ["a"], "tokens_per_minute": 20}]
    path.write_text(json.dumps({"keys": keys}))
    async with several(settings=ServerSettings(key_file=KeyFile(str(path)))) as server:
        check_error(await server.chat("a"), 401, code="invalid_api_key")
        server.client.headers["Authorization"] = "Bearer one"
        check_error(await server.chat("b"), 403, "model", "model_not_found")
        assert server.running == set(), "it was not even loaded"
        assert [card["id"] for card in (await server.client.get("/v1/models")).json()["data"]] == ["a"]
        statuses = [(await server.chat("a")).status_code for _ in range(3)]
        assert statuses[0] == 200
        assert statuses[-1] == 429


# ---- adapters --------------------------------------------------------------------------------------------------------


@pytest.fixture
def admin(tmp_path):
    keys = [
        {"name": "operator", "key": "admin", "admin": True},
        {"name": "other", "key": "other", "models": ["french"]},
    ]
    path = tmp_path / "keys.json"
    path.write_text(json.dumps({"keys": keys}))
    return ServerSettings(key_file=KeyFile(str(path)))


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "french"
    path.mkdir()
    said = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj"]}
    (path / "adapter_config.json").write_text(json.dumps(said))
    layer = "base_model.model.model.layers.0.self_attn.q_proj"
    shapes = {f"{layer}.lora_A.weight": (4, 24), f"{layer}.lora_B.weight": (16, 4)}
    weights = {name: np.full(shape, 0.5, np.float32) for name, shape in shapes.items()}
    save_file(weights, path / "adapter_model.safetensors")
    return path


async def test_an_adapter_is_of_the_model_that_its_loading_names_and_outlives_its_time_in_memory(admin, folder):
    async with several(settings=admin, max_loaded=1) as server:
        server.fakes["b"].lora = True
        http = server.client

        async def load(key, **fields):
            body = {"lora_name": "french", "lora_path": str(folder), "model": "b", **fields}
            return await http.post(LOAD, json=body, headers={"Authorization": f"Bearer {key}"})

        check_error(await load("other"), 403, code="permission_denied")
        assert server.running == set(), "nothing is loaded for who may not"
        assert (await load("admin")).status_code == 200
        assert server.running == {"b"}
        http.headers["Authorization"] = "Bearer admin"
        assert "already; load_inplace" in check_error(await load("admin"), 400, "lora_name")
        assert "needs --enable-lora" in check_error(await load("admin", model="a"), 404, code="unknown_url")
        cards = {card["id"]: card for card in (await http.get("/v1/models")).json()["data"]}
        assert [*cards] == ["a", "b", "french", "c"]
        assert (cards["french"]["parent"], cards["french"]["state"]) == ("b", cards["b"]["state"])
        assert (await http.get("/v1/models/french")).json() == cards["french"]
        # By then another model was loaded; the adapter is there again with its own.
        assert (await server.chat("c")).status_code == 200
        assert server.running == {"c"}
        assert (await server.chat("french")).json()["model"] == "french"
        (call,) = server.fakes["b"].engines[-1].calls
        assert "lora" in call.feature_args
        # A key may have an adapter and not its model.
        http.headers["Authorization"] = "Bearer other"
        assert (await server.chat("french")).status_code == 200
        check_error(await server.chat("b"), 403, "model", "model_not_found")
        http.headers["Authorization"] = "Bearer admin"
        check_error(await http.post(UNLOAD, json={"lora_name": "german"}), 404, "lora_name", "model_not_found")
        check_error(await http.post(UNLOAD, json={"lora_name": "a"}), 404, code="unknown_url")
        assert (await http.post(UNLOAD, json={"lora_name": "french"})).status_code == 200
        check_error(await server.chat("french"), 404, "model", "model_not_found")


async def test_no_two_models_have_an_adapter_of_one_name(admin, folder):
    async with several(settings=admin) as server:
        server.client.headers["Authorization"] = "Bearer admin"
        statuses = []
        for name in "ab":
            server.fakes[name].lora = True
        for name, adapter in (("a", "french"), ("b", "french"), ("b", "a"), ("b", "german")):
            body = {"lora_name": adapter, "lora_path": str(folder), "model": name}
            statuses.append((await server.client.post(LOAD, json=body)).status_code)
        assert statuses == [200, 400, 400, 200]
        body = {"lora_name": "more", "lora_path": str(folder), "model": "french"}
        check_error(await server.client.post(LOAD, json=body), 400, "model")


# ---- batches ---------------------------------------------------------------------------------------------------------


async def run_batch(server, models, wait=True):
    """A line for each model, in this order. Returns the batch once it has ended, and its results."""
    lines = [
        {
            "custom_id": f"{number} {name}",
            "method": "POST",
            "url": PROMPTS,
            "body": {"model": name, "prompt": "Hi"},
        }
        for number, name in enumerate(models)
    ]
    file = ("in.jsonl", "\n".join(map(json.dumps, lines)).encode())
    made = await server.client.post("/v1/files", files={"file": file}, data={"purpose": "batch"})
    asked = {"input_file_id": made.json()["id"], "endpoint": PROMPTS, "completion_window": "24h"}
    batch = (await server.client.post("/v1/batches", json=asked)).json()
    while wait and batch["status"] in ("validating", "in_progress", "finalizing"):
        await asyncio.sleep(0.02)
        batch = (await server.client.get(f"/v1/batches/{batch['id']}")).json()
    results = []
    for key in (batch["output_file_id"], batch["error_file_id"]):
        text = "" if key is None else (await server.client.get(f"/v1/files/{key}/content")).text
        results += [json.loads(line) for line in text.splitlines()]
    return batch, {one["custom_id"]: one["response"]["body"] for one in results}


async def test_the_lines_of_a_batch_go_to_the_models_that_they_name(monkeypatch):
    monkeypatch.setattr(hosted_models, "PATIENCE_SECONDS", 0.0)
    async with several("abc", max_loaded=1) as server:
        server.fakes["a"].seconds = 0.05
        batch, bodies = await run_batch(server, "cabacdb")
        assert (batch["status"], batch["request_counts"]) == ("completed", {"total": 7, "completed": 6, "failed": 1})
        assert {name: body.get("model") for name, body in bodies.items() if name != "5 d"} == {
            f"{number} {name}": name for number, name in enumerate("cabacdb") if name != "d"
        }
        assert bodies["5 d"]["error"]["code"] == "model_not_found"
        # However the lines are mixed, none is loaded twice.
        assert [len(fake.engines) for fake in server.fakes.values()] == [1, 1, 1]


async def test_a_batch_takes_no_model_s_place_that_is_in_use(monkeypatch):
    monkeypatch.setattr(hosted_models, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(hosted_models, "PATIENCE_SECONDS", 0.3)
    async with several("ab", max_loaded=1) as server:
        server.fakes["a"].script = Script(pieces=["x"] * 50, delay=0.01)
        streaming = asyncio.create_task(server.chat("a", stream=True))
        await until(lambda: server.running == {"a"} and server.fakes["a"].engines[0].running)
        batch = asyncio.create_task(run_batch(server, "b"))
        assert '"finish_reason":"stop"' in (await streaming).text
        assert (server.running, server.hosted.models["b"].num_waiting) == ({"a"}, 0)
        ended, _ = await batch
        assert (ended["status"], server.running) == ("completed", {"b"})


async def test_a_model_that_cannot_be_loaded_fails_its_own_lines(monkeypatch):
    monkeypatch.setattr(runner, "PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(hosted_room, "PAUSE_SECONDS", 0.01)
    async with several("ab") as server:
        server.fakes["b"].wrong = ModelError("There is no folder '/secret/place'.")
        batch, bodies = await run_batch(server, "aba")
        assert batch["request_counts"] == {"total": 3, "completed": 2, "failed": 1}
        assert bodies["1 b"]["error"]["code"] == "model_not_loaded"
        assert "/secret" not in json.dumps(bodies)


async def test_a_batch_may_use_the_models_of_its_key(tmp_path):
    path = tmp_path / "keys.json"
    path.write_text(json.dumps({"keys": [{"name": "one", "key": "one", "models": ["a"]}]}))
    async with several(settings=ServerSettings(key_file=KeyFile(str(path)))) as server:
        server.client.headers["Authorization"] = "Bearer one"
        _, bodies = await run_batch(server, "ab")
        assert (bodies["0 a"]["model"], bodies["1 b"]["error"]["code"]) == ("a", "model_not_found")
        assert server.running == {"a"}


async def test_a_batch_that_had_not_ended_goes_on_in_the_next_server(tmp_path, monkeypatch):
    settings = ServerSettings(batch_store=str(tmp_path / "store"))
    async with several("ab", settings=settings) as server:
        server.fakes["b"].script = Script(pieces=["x"] * 3, hang_at=1)
        batch, _ = await run_batch(server, "aab", wait=False)
        await until(lambda: server.running == {"a", "b"} and server.fakes["b"].engines[0].running)
    async with several("ab", settings=settings) as server:
        ended = batch
        while ended["status"] in ("validating", "in_progress", "finalizing"):
            await asyncio.sleep(0.02)
            ended = (await server.client.get(f"/v1/batches/{batch['id']}")).json()
        assert ended["request_counts"] == {"total": 3, "completed": 3, "failed": 0}
        assert server.running == {"b"}
