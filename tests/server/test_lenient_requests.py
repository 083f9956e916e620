"""Requests as other servers' clients write them: what is meant is clear, so it is taken."""

from __future__ import annotations

import gzip
import json
import zlib

import pytest

from tessera.server.encoding import Gunzip
from tessera.server.settings import Limits, ServerSettings
from tests.server.conftest import in_process
from tests.server.fake_engine import MAX_MODEL_LEN, TEMPLATE, FakeEngine, FakeInfo
from tests.server.test_errors import check_error

USER = {"role": "user", "content": "Hi"}


def rendered(api):
    return api.engine.tokenizer.decode(api.engine.calls[-1].prompt)


# ---- the model ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", [{}, {"model": None}])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": [USER]}),
        ("/v1/completions", {"prompt": "Hi"}),
        ("/v1/responses", {"input": "Hi"}),
        ("/v1/messages", {"messages": [USER], "max_tokens": 5}),
        ("/v1/messages/count_tokens", {"messages": [USER]}),
    ],
)
async def test_a_request_without_a_model_means_the_first_name(path, body, model):
    async with in_process(FakeEngine(), ServerSettings(served_model_names=("first", "second"))) as api:
        response = await api.post(path, {**body, **model})
    assert response.status_code == 200, response.text
    assert response.json().get("model", "first") == "first"


async def test_a_stream_without_a_model_names_it(api):
    response = await api.post("/v1/completions", {"prompt": "Hi", "stream": True})
    assert '"model":"fake-model"' in response.text


# ---- chats -------------------------------------------------------------------------------------------------------


async def test_a_chat_may_be_as_long_as_the_context():
    engine = FakeEngine(info=FakeInfo(max_model_len=2**21))
    async with in_process(engine) as api:
        assert (await api.chat(messages=[{"role": "user", "content": "x" * 2**20}])).status_code == 200
    assert len(engine.calls[0].prompt) > 2**20 > MAX_MODEL_LEN


async def test_any_role_reaches_the_template(api):
    messages = [{"role": "function", "name": "f", "content": "1"}, {"role": "r" * 64, "content": "2"}]
    assert (await api.chat(messages=messages)).status_code == 200
    assert rendered(api) == f"<tool>1</tool><{'r' * 64}>2</{'r' * 64}><assistant>"


async def test_refusals_and_old_calls_of_the_assistant_are_read(api):
    messages = [
        {"role": "assistant", "content": [{"type": "text", "text": "A"}, {"type": "refusal", "refusal": "No."}]},
        {"role": "assistant", "content": None, "function_call": {"name": "add", "arguments": '{"x": 3}'}},
    ]
    assert (await api.chat(messages=messages)).status_code == 200
    assert rendered(api) == "<assistant>A\nNo.</assistant><assistant>[add 3]</assistant><assistant>"


async def test_verbosity_is_for_templates_that_mention_it():
    async with in_process(FakeEngine(template=TEMPLATE + "{{ verbosity }}")) as api:
        assert (await api.chat(verbosity="low")).status_code == 200
        assert rendered(api).endswith("low")
        check_error(await api.chat(verbosity="x" * 17), 400, "verbosity")
    async with in_process(FakeEngine()) as api:
        assert (await api.chat(verbosity="high")).status_code == 200


# ---- numbers -----------------------------------------------------------------------------------------------------


async def test_a_whole_number_may_be_written_as_a_float(api):
    fields = {"max_tokens": 3.0, "n": 2.0, "seed": 7.0, "stop_token_ids": [9.0, 10], "top_k": 4e1}
    assert (await api.chat(**fields, temperature=1.0)).status_code == 200
    params = api.engine.calls[-1].params
    assert (params.max_tokens, params.n, params.seed, params.stop_token_ids, params.top_k) == (3, 2, 7, (9, 10), 40)
    assert (await api.complete(prompt=[5.0, 6])).status_code == 200
    assert api.engine.calls[-1].prompt == [5, 6]
    assert (await api.post("/detokenize", {"tokens": [72.0]})).status_code == 200
    body = {"messages": [USER], "max_tokens": 5.0, "thinking": {"type": "enabled", "budget_tokens": 3.0}}
    assert (await api.post("/v1/messages", body)).status_code == 200


@pytest.mark.parametrize("value", ["16", 16.5, True, "16.0", [16.0], 1e300])
async def test_what_is_not_a_whole_number_is_refused_beside_one_that_is(api, value):
    check_error(await api.chat(top_k=40.0, max_tokens=value), 400, "max_tokens")
    assert not api.engine.calls


async def test_a_float_stays_one_where_a_float_is_due(api):
    await api.chat(max_tokens=3.0, vllm_xargs={"a": 1.0}, chat_template_kwargs={"mood": 2.0})
    assert "(2.0)" in rendered(api)


async def test_a_seed_has_64_bits(api):
    for seed in (-(2**63), 2**64 - 1):
        await api.complete(seed=seed)
        assert api.engine.calls[-1].params.seed == seed
    await api.complete(seed=-1)
    assert api.engine.calls[-1].params.seed is None
    for seed in (-(2**63) - 1, 2**64):
        message = check_error(await api.complete(seed=seed), 400, "seed")
        assert "at least -9223372036854775808 and at most 18446744073709551615" in message


# ---- bodies ------------------------------------------------------------------------------------------------------

BODY = json.dumps({"prompt": "Hi"}).encode()
ZIPPED = gzip.compress(BODY)


async def send(api, content, coding):
    headers = {"Content-Type": "application/json", "Content-Encoding": coding}
    return await api.client.post("/v1/completions", content=content, headers=headers)


@pytest.mark.parametrize(
    ("content", "coding"),
    [
        (ZIPPED, "gzip"),
        (ZIPPED, "X-GZIP"),
        (gzip.compress(BODY[:5]) + gzip.compress(BODY[5:]), "gzip"),
        (BODY, "identity"),
    ],
    ids=["gzip", "x-gzip", "members", "identity"],
)
async def test_a_zipped_body_is_read(api, content, coding):
    assert (await send(api, content, coding)).status_code == 200


@pytest.mark.parametrize("size", [1, 20])
async def test_a_zipped_body_is_read_in_any_pieces(api, size):
    async def pieces():
        for start in range(0, len(ZIPPED), size):
            yield ZIPPED[start : start + size]

    assert (await send(api, pieces(), "gzip")).status_code == 200


@pytest.mark.parametrize("content", [BODY, ZIPPED[:-1], ZIPPED + b"x", b""], ids=["plain", "cut", "more", "empty"])
async def test_what_is_not_gzip_is_a_400(api, content):
    check_error(await send(api, content, "gzip"), 400)


@pytest.mark.parametrize("coding", ["br", "deflate", "zstd", "gzip, gzip"])
async def test_another_coding_is_a_415(api, coding):
    assert "Content-Encoding" in check_error(await send(api, zlib.compress(BODY), coding), 415)


async def test_a_bomb_is_stopped_at_the_limit_while_it_is_decoded(monkeypatch):
    decoded = []
    whole = Gunzip.pieces

    def counted(self, data):
        for piece in whole(self, data):
            decoded.append(len(piece))
            yield piece

    monkeypatch.setattr(Gunzip, "pieces", counted)
    bomb = gzip.compress(b" " * 2**26)
    limits = Limits(body_bytes=2**20)
    assert len(bomb) < limits.body_bytes
    async with in_process(FakeEngine(), ServerSettings(limits=limits)) as api:
        check_error(await send(api, bomb, "gzip"), 413)
    assert sum(decoded) <= 2**20 + 2**18
    async with in_process(FakeEngine(), ServerSettings(limits=Limits(bodies_bytes=2**20))) as api:
        check_error(await send(api, bomb, "gzip"), 503, kind="overloaded_error")
        assert (await send(api, ZIPPED, "gzip")).status_code == 200


async def test_members_without_content_count_as_they_arrive():
    async def members():
        for _ in range(2000):
            yield gzip.compress(b"")

    async with in_process(FakeEngine(), ServerSettings(limits=Limits(body_bytes=1000))) as api:
        check_error(await send(api, members(), "gzip"), 413)


async def test_a_byte_order_mark_is_skipped(api):
    assert (await api.post("/v1/completions", b"\xef\xbb\xbf" + BODY)).status_code == 200
    assert (await api.post("/tokenize", b"\xef\xbb\xbf" + BODY)).status_code == 200
