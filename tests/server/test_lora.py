"""Adapters as models of their own: which names there are, and which adapter a request gets."""

from __future__ import annotations

import dataclasses

import pytest

from tessera.config.engine import LoraConfig
from tests.server.conftest import in_process
from tests.server.fake_engine import MODEL, FakeEngine

MODULES = (("french", "/secret/place/fr"), ("org/german", "/secret/place/de"))


@pytest.fixture
async def adapted():
    engine = FakeEngine()
    engine.config = dataclasses.replace(engine.config, lora=LoraConfig(enable=True, modules=MODULES))
    async with in_process(engine) as api:
        yield api


async def test_models_lists_adapters_with_their_parent(adapted):
    answer = await adapted.client.get("/v1/models")
    models = answer.json()["data"]
    assert [(model["id"], model["root"], model["parent"]) for model in models] == [
        (MODEL, MODEL, None),
        ("french", "french", MODEL),
        ("org/german", "org/german", MODEL),
    ]
    assert (await adapted.client.get("/v1/models/org/german")).json() == models[2]
    assert "secret" not in answer.text


@pytest.mark.parametrize(("model", "folder"), [(MODEL, ""), *MODULES])
async def test_the_model_of_a_request_chooses_its_adapter(adapted, model, folder):
    for answer in (await adapted.chat(model=model), await adapted.complete(model=model)):
        assert answer.status_code == 200, answer.text
        assert answer.json()["model"] == model
    assert [call.feature_args.get("lora", "") for call in adapted.engine.calls] == [folder, folder]


async def test_beams_are_searched_with_the_adapter(adapted):
    answer = await adapted.complete(model="french", use_beam_search=True, n=2, max_tokens=2)
    assert answer.status_code == 200, answer.text
    assert {call.feature_args["lora"] for call in adapted.engine.calls} == {MODULES[0][1]}


async def test_a_wrong_name_is_a_404_as_for_an_unknown_model(adapted):
    answer = await adapted.chat(model="/secret/place/fr")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")
    assert not adapted.engine.calls
