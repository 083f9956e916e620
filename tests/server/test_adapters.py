"""Adapters that are loaded and unloaded while the server runs."""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import json
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from tessera.config.engine import LoraConfig
from tessera.errors import RequestError
from tessera.server import adapter_copies, adapters
from tessera.server.key_file import KeyFile
from tessera.server.settings import ServerSettings
from tests.server.conftest import in_process
from tests.server.fake_engine import MODEL, FakeEngine, Script
from tests.server.test_errors import check_error
from tests.server.test_lifecycle import until

LAYER = "base_model.model.model.layers.0.self_attn.q_proj"
LOAD, UNLOAD = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"


@pytest.fixture
def folder(tmp_path):
    def write(name="french", value=0.5, settings=()):
        path = tmp_path / name
        path.mkdir(exist_ok=True)
        said = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj"], **dict(settings)}
        (path / "adapter_config.json").write_text(json.dumps(said))
        weights = {f"{LAYER}.lora_A.weight": (4, 24), f"{LAYER}.lora_B.weight": (16, 4)}
        arrays = {name: np.full(shape, value, np.float32) for name, shape in weights.items()}
        save_file(arrays, path / "adapter_model.safetensors")
        return path

    return write


@pytest.fixture
def serving(tmp_path):
    """A server whose key "admin" may load adapters, and whose key "other" may not."""

    @asynccontextmanager
    async def start(engine=None, lora=None, **settings):
        keys = tmp_path / "keys.yaml"
        keys.write_text("keys: [{name: operator, key: admin, admin: true}, {name: other, key: other}]")
        engine = engine or FakeEngine()
        engine.config = dataclasses.replace(engine.config, lora=lora or LoraConfig(enable=True))
        async with in_process(engine, ServerSettings(key_file=KeyFile(str(keys)), **settings)) as api:
            api.client.headers["Authorization"] = "Bearer admin"
            yield api

    return start


async def load(api, name, path, **fields):
    return await api.post(LOAD, {"lora_name": name, "lora_path": str(path), **fields})


def files(path):
    """The names in a folder; none if it is gone."""
    return {entry.name for entry in Path(path).iterdir()} if Path(path).exists() else set()


async def names(api):
    return {card["id"]: card["parent"] for card in (await api.client.get("/v1/models")).json()["data"]}


async def test_an_adapter_comes_and_goes(serving, folder):
    async with serving() as api:
        loaded = await load(api, "french", folder())
        assert (loaded.status_code, loaded.text) == (200, "Success: LoRA adapter 'french' added successfully.")
        assert await names(api) == {MODEL: None, "french": MODEL}
        assert (await api.client.get("/v1/models/french")).json()["parent"] == MODEL
        assert (await api.chat(model="french")).json()["model"] == "french"
        tried, asked = (call.feature_args["lora"] for call in api.engine.calls)
        # A copy is served: what becomes of the folder does not matter.
        assert tried == asked != str(folder())
        assert files(asked) == {"adapter_config.json", "adapter_model.safetensors"}
        gone = await api.post(UNLOAD, {"lora_name": "french"})
        assert (gone.status_code, gone.text) == (200, "Success: LoRA adapter 'french' removed successfully.")
        assert await names(api) == {MODEL: None}
        check_error(await api.chat(model="french"), 404, "model", "model_not_found")
        check_error(await api.post(UNLOAD, {"lora_name": "french"}), 404, "lora_name", "model_not_found")
    assert not files(asked)


async def test_another_version_takes_a_name_s_place_if_that_is_asked_for(serving, folder):
    async with serving() as api:
        path = folder()
        await load(api, "french", path)
        message = check_error(await load(api, "french", path), 400, "lora_name")
        assert message == "There is a model 'french' already; load_inplace replaces it."
        assert (await load(api, "french", path, load_inplace=True)).status_code == 200
        first, second = (call.feature_args["lora"] for call in api.engine.calls)
        assert first != second
        await api.chat(model="french")
        assert api.engine.calls[-1].feature_args["lora"] == second
        check_error(await load(api, MODEL, path, load_inplace=True), 400, "lora_name")


async def test_requests_that_run_end_with_an_adapter_that_goes(serving, folder, monkeypatch):
    monkeypatch.setattr(adapter_copies, "UNREAD_SECONDS", 0.0)
    engine = FakeEngine()
    async with serving(engine) as api:
        await load(api, "french", folder())
        copy = engine.calls[0].feature_args["lora"]
        engine.script = Script(pieces=["x"] * 40, delay=0.01)
        streaming = asyncio.create_task(api.chat(model="french", stream=True))
        await until(lambda: engine.running)
        await api.post(UNLOAD, {"lora_name": "french"})
        assert files(copy)
        assert '"finish_reason":"stop"' in (await streaming).text
        del streaming
        await until(lambda: gc.collect() is not None and not engine.running)
        # What nobody uses goes when the next one comes.
        engine.script = Script()
        await load(api, "german", folder("german"))
        assert not files(copy)


async def test_only_an_admin_loads_and_only_where_that_may_be(serving, folder):
    async with serving() as api:
        api.client.headers["Authorization"] = "Bearer other"
        for response in (await load(api, "french", folder()), await api.post(UNLOAD, {"lora_name": "french"})):
            message = check_error(response, 403, code="permission_denied")
            assert message == "This needs an API key with `admin: true` in the server's file of keys."
    async with serving(lora=LoraConfig()) as api:
        assert "it needs --enable-lora" in check_error(await load(api, "french", folder()), 404, code="unknown_url")
    engine = FakeEngine()
    engine.config = dataclasses.replace(engine.config, lora=LoraConfig(enable=True))
    async with in_process(engine) as api:
        check_error(await load(api, "french", folder()), 404, code="unknown_url")


REFUSED = [
    ({"lora_name": ""}, "lora_name", "1 to 256 characters"),
    ({"lora_name": "x" * 257}, "lora_name", "1 to 256 characters"),
    ({"lora_name": "a\nb"}, "lora_name", "1 to 256 characters"),
    ({"lora_path": "x" * 4097}, "lora_path", "1 to 4096 characters"),
    ({"lora_path": "\0"}, "lora_path", "1 to 4096 characters"),
    ({"lora_path": "no/such"}, "lora_path", "There is no folder 'french'"),
    ({"lora_name": 3}, "lora_name", "expected str"),
    ({"lora_name": "module"}, "lora_name", "There is a model 'module' already."),
]


@pytest.mark.parametrize(("fields", "param", "reason"), REFUSED, ids=range(len(REFUSED)))
async def test_what_is_wrong_is_one_line(serving, folder, fields, param, reason):
    async with serving(lora=LoraConfig(enable=True, modules=(("module", "/fr"),))) as api:
        body = {"lora_name": "french", "lora_path": str(folder()), **fields}
        assert reason in check_error(await api.post(LOAD, body), 400, param)
        assert not api.engine.calls
        check_error(await api.post(UNLOAD, {"lora_name": "module"}), 400, "lora_name")


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        ({"settings": {"r": 32}}, "'french' has rank 32, but --max-lora-rank is 16; raise it to 32."),
        ({"settings": {"use_dora": True}}, "'french' sets use_dora in adapter_config.json"),
        ({"value": np.nan}, "'french' holds NaN or infinity in float32; train it again."),
        ({"value": np.inf}, "'french' holds NaN or infinity in float32; train it again."),
    ],
)
async def test_an_adapter_that_cannot_be_served_is_refused_by_its_name(serving, folder, tmp_path, made, reason):
    async with serving() as api:
        message = check_error(await load(api, "french", folder(**made)), 400, "lora_path")
        assert reason in message
        assert str(tmp_path) not in message
        assert await names(api) == {MODEL: None}


async def test_what_does_not_fit_the_model_is_the_engine_s_to_say(serving, folder):
    engine = FakeEngine(
        script=Script(error_at=0, error=RequestError("The adapter '/x' cannot be used: it changes 'y'."))
    )
    async with serving(engine) as api:
        check_error(await load(api, "french", folder()), 400, "lora_path")
        copy = engine.calls[0].feature_args["lora"]
        assert not files(copy)
        assert await names(api) == {MODEL: None}


async def test_there_are_only_so_many(serving, folder, monkeypatch):
    monkeypatch.setattr(adapters, "MAX_ADAPTERS", 1)
    async with serving() as api:
        path = folder()
        assert (await load(api, "a", path)).status_code == 200
        assert check_error(await load(api, "b", path), 400, "lora_name").endswith("unload one of them.")
        assert (await load(api, "a", path, load_inplace=True)).status_code == 200
