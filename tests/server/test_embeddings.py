"""POST /v1/embeddings, by hand and by OpenAI's own client."""

from __future__ import annotations

import asyncio
import base64
from dataclasses import replace
from typing import Any

import numpy as np
import openai
import pytest

from tessera.errors import EngineStepError, TextLimitError
from tessera.pooling_params import PoolingParams
from tessera.server.settings import Limits, ServerSettings
from tests.server.conftest import Api, in_process, on_socket
from tests.server.fake_engine import MAX_MODEL_LEN, MODEL, FakeEngine, Script, numbers
from tests.server.pooling_models import CLASSIFIER, DIMENSIONS, EMBEDDER, RERANKER, TOKENS, pooling_engine
from tests.server.test_errors import check_error
from tests.server.test_lifecycle import until

BOS = 256


def ids(text: str) -> list[int]:
    engine = FakeEngine()
    assert engine.tokenizer is not None
    return engine.tokenizer.encode(text)


def vector(text: str, length: int | None = None, *, normalized: bool = True) -> np.ndarray:
    """What the scripted model makes of a text."""
    found = numbers(ids(text), PoolingParams(), EMBEDDER)[:length]
    return found / np.linalg.norm(found) if normalized else found


async def embed(api: Api, **fields: Any) -> Any:
    response = await api.post("/v1/embeddings", {"model": MODEL, **fields})
    assert response.status_code == 200, response.text
    return response.json()


async def vectors(api: Api, **fields: Any) -> list[Any]:
    return [one["embedding"] for one in (await embed(api, **fields))["data"]]


@pytest.fixture
async def api():
    async with in_process(pooling_engine()) as api:
        yield api


# ---- inputs ----------------------------------------------------------------------------------------------------------


async def test_openai_s_client_embeds():
    """It asks for base64 by itself, and decodes it."""
    async with on_socket(pooling_engine()) as server, server.openai() as client:
        for encoding in ({}, {"encoding_format": "float"}, {"encoding_format": "base64"}):
            answer = await client.embeddings.create(model=MODEL, input=["Hi", "there"], **encoding)
            assert (answer.object, answer.model) == ("list", MODEL)
            assert [(one.index, one.object) for one in answer.data] == [(0, "embedding"), (1, "embedding")]
            assert (answer.usage.prompt_tokens, answer.usage.total_tokens) == (9, 9)
            for one, text in zip(answer.data, ("Hi", "there"), strict=True):
                found = one.embedding
                if encoding.get("encoding_format") == "base64":
                    found = np.frombuffer(base64.b64decode(found), "<f4")
                np.testing.assert_allclose(found, vector(text), rtol=1e-6)
        with pytest.raises(openai.BadRequestError) as wrong:
            await client.embeddings.create(model=MODEL, input=["Hi", ""])
        assert wrong.value.param == "input[1]"


async def test_a_text_token_ids_and_lists_of_either(api):
    text, tokens = "Hi", ids("Hi")
    for value, count in ((text, 1), (tokens, 1), ([text, text], 2), ([tokens, tokens], 2)):
        found = await vectors(api, input=value)
        assert len(found) == count
        for one in found:
            np.testing.assert_allclose(one, vector(text), rtol=1e-6)


async def test_special_tokens_may_be_left_out(api):
    await embed(api, input="Hi", add_special_tokens=False)
    assert api.engine.pooled[0].prompt.ids.tolist() == ids("Hi")[1:]


async def test_a_chat_is_embedded_as_its_template_writes_it(api):
    answer = await embed(api, messages=[{"role": "user", "content": "Hi"}])
    assert api.engine.tokenizer.decode(api.engine.pooled[0].prompt.ids.tolist()) == "<user>Hi</user>"
    assert answer["usage"]["prompt_tokens"] == len("<user>Hi</user>")
    await embed(api, messages=[{"role": "user", "content": "Hi"}], add_generation_prompt=True)
    assert len(api.engine.pooled[1].prompt.ids) == len("<user>Hi</user><assistant>")


async def test_either_an_input_or_messages(api):
    check_error(await api.post("/v1/embeddings", {"model": MODEL}), 400, "input")
    both = {"input": "Hi", "messages": [{"role": "user", "content": "Hi"}]}
    check_error(await api.post("/v1/embeddings", both), 400, "input")


@pytest.mark.parametrize(
    ("value", "param"),
    [
        ("", "input"),
        ([], "input"),
        (["Hi", ""], "input[1]"),
        ([[1], []], "input[1]"),
        (["Hi", 5], "input[1]"),
        ([[1], [999]], "input[1]"),
        (["Hi", "x" * MAX_MODEL_LEN], "input[1]"),
        ([[1], [2] * (MAX_MODEL_LEN + 1)], "input[1]"),
        ("x" * MAX_MODEL_LEN, "input"),
        ({"text": "Hi"}, "input"),
    ],
)
async def test_an_input_that_is_wrong_is_named_and_none_is_run(api, value, param):
    response = await api.post("/v1/embeddings", {"input": value})
    code = "context_length_exceeded" if len(str(value)) >= MAX_MODEL_LEN else None
    assert param in check_error(response, 400, param, code)
    assert not api.engine.pooled


async def test_texts_that_no_one_of_is_known_to_be_wrong_are_named_together(api, monkeypatch):
    async def too_slow(*_: Any, **__: Any) -> list[list[int]]:
        raise TextLimitError("Tokenizing took too long.", param="prompt")

    monkeypatch.setattr(api.engine.text, "encode", too_slow)
    check_error(await api.post("/v1/embeddings", {"input": ["a", "b"]}), 400, "input", "text_limit_exceeded")
    check_error(await api.post("/v1/embeddings", {"input": ["a"]}), 400, "input[0]", "text_limit_exceeded")


async def test_a_text_that_fills_the_context_is_embedded(api):
    """No room is left for an answer."""
    answer = await embed(api, input="x" * (MAX_MODEL_LEN - 1))
    assert answer["usage"]["prompt_tokens"] == MAX_MODEL_LEN


async def test_no_more_inputs_than_the_limit():
    settings = ServerSettings(limits=Limits(pooled_inputs=3))
    async with in_process(pooling_engine(), settings) as api:
        for value in (["Hi"] * 4, [[1]] * 4):
            assert "at most 3" in check_error(await api.post("/v1/embeddings", {"input": value}), 400, "input")
        assert len(await vectors(api, input=["Hi"] * 3)) == 3


async def test_no_more_numbers_than_the_limit():
    settings = ServerSettings(limits=Limits(pooled_numbers=3 * DIMENSIONS))
    async with in_process(pooling_engine(), settings) as api:
        assert len(await vectors(api, input=["Hi"] * 3)) == 3
        assert len(await vectors(api, input=["Hi"] * 9, dimensions=4)) == 9
        assert "48 numbers" in check_error(await api.post("/v1/embeddings", {"input": ["Hi"] * 4}), 400, "input")


# ---- what is wanted of them ------------------------------------------------------------------------------------------


async def test_dimensions(api):
    (found,) = await vectors(api, input="Hi", dimensions=8)
    np.testing.assert_allclose(found, vector("Hi", 8), rtol=1e-6)
    for wrong in (0, -1, 5, DIMENSIONS + 1, 2**20):
        check_error(await api.post("/v1/embeddings", {"input": "Hi", "dimensions": wrong}), 400, "dimensions")


async def test_vectors_may_be_left_as_they_are(api):
    for field in ("use_activation", "normalize"):
        (found,) = await vectors(api, input="Hi", **{field: False})
        np.testing.assert_allclose(found, vector("Hi", normalized=False), rtol=1e-6)
    both = {"input": "Hi", "normalize": True, "use_activation": False}
    check_error(await api.post("/v1/embeddings", both), 400, "normalize")


@pytest.mark.parametrize(
    ("fields", "dtype", "tolerance"),
    [
        ({}, "<f4", 1e-6),
        ({"endianness": "little"}, "<f4", 1e-6),
        ({"endianness": "big"}, ">f4", 1e-6),
        ({"embed_dtype": "float16", "endianness": "big"}, ">f2", 1e-3),
    ],
)
async def test_base64(api, fields, dtype, tolerance):
    (found,) = await vectors(api, input="Hi", encoding_format="base64", **fields)
    np.testing.assert_allclose(np.frombuffer(base64.b64decode(found), dtype), vector("Hi"), rtol=tolerance)


async def test_base64_of_bfloat16_rounds_to_the_nearest(api):
    (found,) = await vectors(api, input="Hi", encoding_format="base64", embed_dtype="bfloat16")
    halves = np.frombuffer(base64.b64decode(found), "<u2").astype(np.uint32) << 16
    np.testing.assert_allclose(halves.view(np.float32), vector("Hi"), rtol=2**-8)


@pytest.mark.parametrize("name", ["encoding_format", "embed_dtype", "endianness"])
async def test_a_form_that_is_not_known_is_refused(api, name):
    check_error(await api.post("/v1/embeddings", {"input": "Hi", name: "bytes"}), 400, name)


async def test_a_text_that_is_too_long_may_be_cut(api):
    text = "ab" * MAX_MODEL_LEN
    for fields, kept in (
        ({"truncate_prompt_tokens": -1}, text[: MAX_MODEL_LEN - 1]),
        ({"truncate_prompt_tokens": 4}, "aba"),
        ({"truncate_prompt_tokens": 5, "truncation_side": "right"}, "abab"),
        ({"truncate_prompt_tokens": 4, "truncation_side": "left"}, "bab"),
    ):
        answer = await embed(api, input=[text, "Hi"], **fields)
        cut, short = (call.prompt.ids.tolist() for call in api.engine.pooled[-2:])
        assert cut == ids(kept)
        assert short == ids("Hi")
        assert answer["usage"]["prompt_tokens"] == len(cut) + len(short)


async def test_token_ids_that_are_too_many_may_be_cut(api):
    many = [1, 2] * MAX_MODEL_LEN
    await embed(api, input=many, truncate_prompt_tokens=-1)
    await embed(api, input=many, truncate_prompt_tokens=3, truncation_side="left")
    assert [call.prompt.ids.tolist() for call in api.engine.pooled] == [many[:MAX_MODEL_LEN], [2, 1, 2]]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ({"truncate_prompt_tokens": MAX_MODEL_LEN + 1}, "truncate_prompt_tokens"),
        ({"truncate_prompt_tokens": 5, "truncation_side": "middle"}, "truncation_side"),
        ({"padding": "max_length"}, "padding"),
        ({"chat_template": "{{ x }}"}, "chat_template"),
        ({"request_id": "a b"}, "request_id"),
        ({"priority": 2**31}, "priority"),
        ({"user": "x" * 257}, "user"),
    ],
)
async def test_a_field_that_is_wrong_is_named(api, fields, param):
    check_error(await api.post("/v1/embeddings", {"input": "Hi", **fields}), 400, param)


# ---- instructions ----------------------------------------------------------------------------------------------------

INSTRUCTED = replace(EMBEDDER, prompts={"query": "Q: ", "none": ""}, default_prompt="query")


async def test_an_instruction_stands_in_front_of_a_text():
    async with in_process(pooling_engine(INSTRUCTED)) as api:
        await embed(api, input="Hi")
        await embed(api, input="Hi", prompt_name="none")
        await embed(api, input=ids("Hi"))
        assert [call.prompt.ids.tolist() for call in api.engine.pooled] == [ids("Q: Hi"), ids("Hi"), ids("Hi")]
        assert {call.prompt.pooling.start for call in api.engine.pooled} == {0}
        wrong = await api.post("/v1/embeddings", {"input": "Hi", "prompt_name": "passage"})
        assert "none, query" in check_error(wrong, 400, "prompt_name")


async def test_an_instruction_may_not_be_pooled():
    async with in_process(pooling_engine(replace(INSTRUCTED, include_prompt=False))) as api:
        await embed(api, input=["Hi", "there"])
        await embed(api, input="Hi", prompt_name="none")
        assert [call.prompt.pooling.start for call in api.engine.pooled] == [len(ids("Q: "))] * 2 + [0]
        cut = await api.post("/v1/embeddings", {"input": "Hi", "truncate_prompt_tokens": 2, "truncation_side": "right"})
        message = check_error(cut, 400, "input")
        assert f"is cut to 2 tokens, and its instruction, which is not pooled, has {len(ids('Q: '))}" in message


# ---- the engine ------------------------------------------------------------------------------------------------------


async def test_who_asks_reaches_the_engine(api):
    answer = await embed(api, input="Hi", priority=3, user="u", cache_salt="s", request_id="mine")
    (call,) = api.engine.pooled
    assert (call.priority, call.tenant, call.cache_salt) == (3, "u", "s")
    assert answer["id"] == "embd-mine"
    assert call.request_id.startswith("embd-mine-")


async def test_all_inputs_run_side_by_side_and_end_when_the_client_leaves():
    engine = pooling_engine(script=Script(delay=30))
    async with on_socket(engine) as server, server.openai() as client:
        request = asyncio.create_task(client.embeddings.create(model=MODEL, input=["Hi"] * 5))
        await until(lambda: len(engine.running) == 5)
        request.cancel()
        await until(lambda: not engine.running)
    assert len(engine.aborted) == 5


async def test_no_request_fills_the_engine_by_itself():
    engine = pooling_engine(script=Script(delay=0.05))
    engine.info.max_num_seqs = 2
    async with in_process(engine) as api:
        request = asyncio.create_task(vectors(api, input=[f"text {number}" for number in range(10)]))
        await until(lambda: len(engine.running) == 4)
        found = await request
    for number, one in enumerate(found):
        np.testing.assert_allclose(one, vector(f"text {number}"), rtol=1e-5)


async def test_an_error_of_the_engine_ends_all():
    engine = pooling_engine(script=Script(error=EngineStepError("x"), error_at=1, delay=0))
    async with in_process(engine) as api:
        check_error(await api.post("/v1/embeddings", {"input": ["a", "b", "c"]}), 500, kind="engine_error")
        assert not engine.running


async def test_requests_that_hold_too_many_numbers_are_told_to_come_back():
    settings = ServerSettings(limits=Limits(all_pooled_numbers=2 * DIMENSIONS))
    engine = pooling_engine(script=Script(delay=30))
    async with in_process(engine, settings) as api:
        first = asyncio.create_task(api.post("/v1/embeddings", {"input": "Hi"}))
        await until(lambda: len(engine.running) == 1)
        refused = await api.post("/v1/embeddings", {"input": ["Hi", "Hi"]})
        assert "numbers" in check_error(refused, 503, kind="overloaded_error")
        first.cancel()


async def test_many_vectors_are_as_few(api):
    """They are written beside the event loop, in pieces."""
    texts = [f"text {number}" for number in range(600)]
    for text, one in zip(texts, await vectors(api, input=texts), strict=True):
        np.testing.assert_allclose(one, vector(text), rtol=1e-5)


# ---- models ----------------------------------------------------------------------------------------------------------


async def test_a_model_that_only_generates_says_what_to_do():
    async with in_process(FakeEngine()) as api:
        message = check_error(await api.post("/v1/embeddings", {"input": "Hi"}), 400, "model")
        assert "/v1/chat/completions" in message
        assert "--convert embed" in message
        check_error(
            await api.post("/v1/embeddings", {"input": "Hi", "model": "other"}), 404, "model", "model_not_found"
        )


@pytest.mark.parametrize("pooler", [RERANKER, CLASSIFIER, TOKENS])
async def test_a_model_of_another_task_says_what_it_does(pooler):
    async with in_process(pooling_engine(pooler)) as api:
        message = check_error(await api.post("/v1/embeddings", {"input": "Hi"}), 400, "model")
        assert "--convert" not in message
        assert ("/classify" if pooler is not TOKENS else "/pooling") in message


async def test_an_embedder_that_is_asked_for_text_says_what_it_does(api):
    for post in (api.chat, api.complete):
        assert "/v1/embeddings" in check_error(await post(), 400, "model")
    questions = [{"type": "predicate", "instructions": "?"}]
    check_error(await api.post("/v1/decisions", {"input": "Hi", "questions": questions}), 400, "model")
    check_error(await api.post("/v1/responses", {"input": "Hi"}), 400, "model")
    body = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 5}
    assert "/v1/embeddings" in (await api.post("/v1/messages", body)).json()["error"]["message"]
    assert not api.engine.calls


async def test_the_list_of_models_says_what_they_do():
    for engine, tasks, labels in (
        (FakeEngine(), ["generate"], None),
        (pooling_engine(), ["embed", "token_embed"], None),
        (pooling_engine(generates=True), ["generate", "embed", "token_embed"], None),
        (pooling_engine(CLASSIFIER), ["classify", "token_classify"], ["sad", "glad", "mad"]),
    ):
        async with in_process(engine) as api:
            (model,) = (await api.client.get("/v1/models")).json()["data"]
            assert (model["tasks"], model.get("labels")) == (tasks, labels)


async def test_a_model_may_do_both():
    async with in_process(pooling_engine(generates=True)) as api:
        assert len(await vectors(api, input="Hi")) == 1
        assert (await api.chat()).status_code == 200


async def test_without_a_tokenizer_token_ids_are_embedded():
    async with in_process(pooling_engine(tokenizer=None)) as api:
        assert len(await vectors(api, input=[1, 2])) == 1
        assert "token ids" in check_error(await api.post("/v1/embeddings", {"input": "Hi"}), 400, "input")


async def test_the_request_is_counted_and_has_other_paths(api):
    await embed(api, input="Hi")
    text = (await api.client.get("/metrics")).text
    assert 'http_requests_total{method="POST",handler="/v1/embeddings",status="200"} 1' in text
    for path in ("/embeddings", "/invocations"):
        assert len((await api.post(path, {"input": "Hi"})).json()["data"]) == 1
