"""Every sampling field on the wire: OpenAI's client sends it, the engine gets it, a bad value is refused by name."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from tessera.sampling_params import StructuredOutputsParams
from tessera.server.settings import AnswerLimits, ServerSettings
from tests.server.conftest import in_process, on_socket
from tests.server.fake_engine import MODEL, FakeEngine
from tests.server.sse import read_stream
from tests.server.test_errors import check_error

USER = {"role": "user", "content": "Hi"}
VOCAB = 257

SENT: dict[str, tuple[Any, str, Any]] = {
    "presence_penalty": (1.5, "presence_penalty", 1.5),
    "frequency_penalty": (-2, "frequency_penalty", -2),
    "repetition_penalty": (1.25, "repetition_penalty", 1.25),
    "logit_bias": ({"7": 3, "256": -500.5}, "logit_bias", {7: 3.0, 256: -100.0}),
    "allowed_token_ids": ([5, 6], "allowed_token_ids", (5, 6)),
    "bad_words": (["no", "never", "no"], "bad_words", ("no", "never")),
    "prompt_logprobs": (2, "prompt_logprobs", 2),
    "spaces_between_special_tokens": (False, "spaces_between_special_tokens", False),
    "stream_interval": (4, "stream_interval", 4),
    "vllm_xargs": ({"push": 1.5, "on": True}, "extra_args", {"push": 1.5, "on": True}),
    "min_tokens": (3, "min_tokens", 3),
    "structured_outputs": ({"regex": "a+"}, "structured_outputs", StructuredOutputsParams(regex="a+")),
}
OPENAI_S_OWN = {"presence_penalty", "frequency_penalty", "logit_bias"}


@pytest.fixture
async def server():
    async with on_socket(FakeEngine()) as server:
        yield server


@pytest.mark.parametrize("chat", [True, False], ids=["chat", "completions"])
async def test_a_field_reaches_the_engine(server, chat):
    async with server.openai() as client:
        for name, (value, field, expected) in SENT.items():
            given = {name: value} if name in OPENAI_S_OWN else {"extra_body": {name: value}}
            if chat:
                await client.chat.completions.create(model=MODEL, messages=[USER], **given)
            else:
                await client.completions.create(model=MODEL, prompt="Hi", **given)
            assert getattr(server.engine.calls[-1].params, field) == expected, name


BAD: list[tuple[str, Any]] = [
    ("presence_penalty", 2.1),
    ("presence_penalty", "1"),
    ("frequency_penalty", -2.01),
    ("frequency_penalty", True),
    ("repetition_penalty", 0),
    ("repetition_penalty", -1),
    ("repetition_penalty", 1e300),
    ("logit_bias", {"x": 1}),
    ("logit_bias", {"-1": 1}),
    ("logit_bias", {"1.5": 1}),
    ("logit_bias", {"5": "1"}),
    ("logit_bias", {"5": None}),
    ("logit_bias", [5]),
    ("logit_bias", {str(token): 1 for token in range(1025)}),
    ("allowed_token_ids", []),
    ("allowed_token_ids", [-1]),
    ("allowed_token_ids", ["5"]),
    ("allowed_token_ids", [1] * (VOCAB + 1)),
    ("bad_words", "word"),
    ("bad_words", [""]),
    ("bad_words", ["x" * 257]),
    ("bad_words", [str(number) for number in range(1025)]),
    ("prompt_logprobs", -2),
    ("prompt_logprobs", 1.5),
    ("stream_interval", 0),
    ("stream_interval", 1.5),
    ("spaces_between_special_tokens", 0),
    ("return_tokens_as_token_ids", 1),
    ("vllm_xargs", {"push": "hard"}),
    ("vllm_xargs", {"push": [1]}),
    ("vllm_xargs", {"x" * 65: 1}),
    ("vllm_xargs", {str(number): 1 for number in range(65)}),
    ("structured_outputs", {"json": "{"}),
    ("structured_outputs", {"json": {"type": "x"}}),
    ("structured_outputs", {"grammar": "root ::= x"}),
    ("structured_outputs", {"json_object": False}),
    ("structured_outputs", {"json_object": 5}),
    ("structured_outputs", {"structural_tag": "{}"}),
    ("structured_outputs", {"regex": "a", "whitespace_pattern": "x" * 257}),
    ("structured_outputs", {}),
    ("structured_outputs", "a+"),
    ("structured_outputs", {"regex": "a", "choice": ["a"]}),
    ("structured_outputs", {"choice": []}),
    ("structured_outputs", {"regex": "x" * 16385}),
    ("structured_outputs", {"regexp": "x"}),
    ("thinking_token_budget", 5),
    ("repetition_detection", {"max_pattern_size": 3}),
    ("guided_json", {"type": "object"}),
    ("guided_regex", "a+"),
    ("guided_choice", ["a"]),
    ("guided_grammar", "root ::= x"),
]


@pytest.mark.parametrize(("name", "value"), BAD, ids=lambda value: str(value)[:24])
async def test_a_bad_value_is_a_400_that_names_the_field(api, name, value):
    for post in (api.chat, api.complete):
        response = await post(**{name: value})
        param = response.json()["error"]["param"]
        assert name in check_error(response, 400, param)
        assert param.startswith(name)
    assert not api.engine.calls


async def test_bad_words_are_tokenized_once_for_all_prompts(api):
    await api.complete(prompt=["one", "two", "three"], bad_words=["no", "never"], max_tokens=3)
    assert api.engine.tokenized == 1
    assert [call.params.bad_words_ids for call in api.engine.calls] == [[[2], [5]]] * 3


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity", "1e400"])
@pytest.mark.parametrize("name", ["presence_penalty", "repetition_penalty", "logit_bias"])
async def test_no_number_is_not_a_number(api, name, value):
    value = f'{{"5": {value}}}' if name == "logit_bias" else value
    response = await api.post("/v1/completions", f'{{"model":"{MODEL}","prompt":"x","{name}":{value}}}'.encode())
    check_error(response, 400, response.json()["error"]["param"])
    assert not api.engine.calls


async def test_more_log_probabilities_than_the_server_gives(api):
    for fields in ({"logprobs": True, "top_logprobs": 21}, {"logprobs": True, "top_logprobs": -1}):
        assert "at most 20" in check_error(await api.chat(**fields), 400, "top_logprobs")
    check_error(await api.complete(logprobs=21), 400, "logprobs")
    check_error(await api.complete(logprobs=-1), 400, "logprobs")
    check_error(await api.chat(logprobs=True, top_logprobs=-2), 400, "top_logprobs")
    assert (await api.complete(logprobs=20)).status_code == 200


async def test_named_tokens_come_with_the_one_that_was_drawn(api):
    """As in vLLM: a client that reads what was drawn from the list has it there."""
    fields = {"logprob_token_ids": [66, 65], "return_tokens_as_token_ids": True, "max_tokens": 2}
    chat = (await api.chat(logprobs=True, top_logprobs=5, **fields)).json()["choices"][0]["logprobs"]
    names = [[entry["token"] for entry in token["top_logprobs"]] for token in chat["content"]]
    assert names == [["token_id:66", "token_id:65", f"token_id:{drawn}"] for drawn in (0, 1)]
    assert [token["top_logprobs"][-1]["logprob"] for token in chat["content"]] == [-1.5, -1.5]
    whole = (await api.complete(logprobs=1, **fields)).json()["choices"][0]["logprobs"]
    assert [list(token) for token in whole["top_logprobs"]] == names
    drawn = (await api.chat(logprobs=True, **{**fields, "logprob_token_ids": [1, 0]})).json()["choices"][0]["logprobs"]
    names = [[entry["token"] for entry in token["top_logprobs"]] for token in drawn["content"]]
    assert names == [["token_id:1", "token_id:0"]] * 2


async def test_prompt_logprobs_have_an_entry_a_token(api):
    chat = (await api.chat(prompt_logprobs=1)).json()
    completion = (await api.complete(prompt=[5, 6, 7], prompt_logprobs=1)).json()["choices"][0]
    best = {"logprob": -0.5, "rank": 1, "decoded_token": "a"}
    assert completion["prompt_logprobs"] == [
        None,
        {"6": {"logprob": -1.5, "rank": 2, "decoded_token": "'"}, "100": best},
        {"7": {"logprob": -1.5, "rank": 2, "decoded_token": "("}, "100": best},
    ]
    assert len(chat["prompt_logprobs"]) == chat["usage"]["prompt_tokens"]
    assert (await api.chat()).json()["prompt_logprobs"] is None
    assert (await api.complete()).json()["choices"][0]["prompt_logprobs"] is None
    check_error(await api.chat(prompt_logprobs=0, stream=True), 400, "prompt_logprobs")


# ---- echo --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("max_tokens", [1, 0])
async def test_echo_with_logprobs_begins_with_the_prompt(api, max_tokens):
    """As lm-eval asks: a prompt of ids, one token or none, the best alternative of each."""
    prompt = api.engine.tokenizer.encode("Zoë x", False)
    body = (await api.complete(prompt=prompt, echo=True, logprobs=1, max_tokens=max_tokens)).json()
    choice, answered = body["choices"][0], ["Hel"] * max_tokens
    logprobs = choice["logprobs"]
    assert choice["text"] == "Zoë x" + "".join(answered)
    assert choice["finish_reason"] == "length"
    assert body["usage"]["completion_tokens"] == max_tokens
    assert logprobs["tokens"] == ["Z", "o", "\ufffd", "\ufffd", " ", "x", *answered]
    assert logprobs["token_logprobs"] == [None, *[-1.5] * (5 + max_tokens)]
    assert logprobs["top_logprobs"][0] is None
    assert logprobs["top_logprobs"][1] == {"o": -1.5, "a": -0.5}
    assert logprobs["text_offset"] == [0, 1, 2, 2, 3, 4, *[5] * max_tokens]


@pytest.mark.parametrize("stream", [False, True])
async def test_each_answer_to_each_prompt_echoes_the_log_probabilities_of_its_own(api, stream):
    fields = {"prompt": ["ab", "xyz"], "n": 2, "echo": True, "logprobs": 1, "max_tokens": 1, "temperature": 1.0}
    if stream:
        chunks = read_stream((await api.complete(stream=True, **fields)).text)
        choices = [choice for chunk in chunks for choice in chunk["choices"] if choice["logprobs"]]
    else:
        choices = (await api.complete(**fields)).json()["choices"]
    first, second = ["<bos>", "a", "b", "Hel"], ["<bos>", "x", "y", "z", "Hel"]
    found = {choice["index"]: choice["logprobs"] for choice in choices}
    assert [found[index]["tokens"] for index in range(4)] == [first, first, second, second]
    assert [found[index]["text_offset"][-1] for index in range(4)] == [2, 2, 3, 3]


async def test_offsets_leave_out_what_the_text_does_not_show(api):
    """A text's BOS is a token, and no part of the echoed text."""
    choice = (await api.complete(prompt="ab", echo=True, logprobs=0, max_tokens=2)).json()["choices"][0]
    assert choice["logprobs"]["tokens"] == ["<bos>", "a", "b", "Hel", "lo"]
    assert choice["logprobs"]["text_offset"] == [0, 0, 1, 2, 5]
    assert choice["text"] == "abHello"


async def test_max_tokens_0_is_for_echo_alone(api):
    check_error(await api.complete(max_tokens=0), 400, "max_tokens")
    choice = (await api.complete(prompt="ab", echo=True, max_tokens=0)).json()["choices"][0]
    assert (choice["text"], choice["logprobs"], choice["finish_reason"]) == ("ab", None, "length")


async def test_echo_with_logprobs_in_a_stream(server):
    async with server.openai() as client:
        stream = await client.completions.create(
            model=MODEL, prompt=["ab", "c"], n=2, echo=True, logprobs=1, max_tokens=2, stream=True, temperature=1
        )
        texts, tokens, offsets = [""] * 4, [[], [], [], []], [[], [], [], []]
        async for chunk in stream:
            (choice,) = chunk.choices
            texts[choice.index] += choice.text
            if choice.logprobs is not None:
                tokens[choice.index] += choice.logprobs.tokens
                offsets[choice.index] += choice.logprobs.text_offset
    assert texts == ["abHello", "abHello", "cHello", "cHello"]
    assert tokens == [["<bos>", "a", "b", "Hel", "lo"]] * 2 + [["<bos>", "c", "Hel", "lo"]] * 2
    assert offsets == [[0, 0, 1, 2, 5]] * 2 + [[0, 0, 1, 4]] * 2


async def test_tokens_as_token_ids(api):
    fields = {"logprobs": 1, "echo": True, "max_tokens": 1, "return_tokens_as_token_ids": True}
    choice = (await api.complete(prompt=[65], **fields)).json()["choices"][0]
    assert choice["logprobs"]["tokens"] == ["token_id:65", "token_id:0"]
    assert choice["logprobs"]["top_logprobs"] == [None, {"token_id:100": -0.5, "token_id:0": -1.5}]
    assert choice["logprobs"]["text_offset"] == [0, 1]
    chat = (await api.chat(logprobs=True, top_logprobs=1, return_tokens_as_token_ids=True, max_tokens=1)).json()
    entry = chat["choices"][0]["logprobs"]["content"][0]
    assert (entry["token"], entry["top_logprobs"][0]["token"]) == ("token_id:0", "token_id:100")


async def test_the_client_s_errors_have_the_field(server):
    async with server.openai() as client:
        with pytest.raises(openai.BadRequestError) as refused:
            await client.chat.completions.create(model=MODEL, messages=[USER], logit_bias={"x": 1})
    assert refused.value.param == "logit_bias"


async def test_the_model_s_defaults_hold_where_a_request_does_not_say():
    defaults = {"temperature": 0.3, "repetition_penalty": 1.2}
    engine = FakeEngine()
    async with in_process(engine, ServerSettings(default_sampling=defaults, answers=AnswerLimits(default=2))) as api:
        await api.chat()
        await api.complete()
        await api.chat(temperature=0.9, repetition_penalty=1, max_tokens=3)
    said = [(call.params.temperature, call.params.repetition_penalty, call.params.max_tokens) for call in engine.calls]
    assert said == [(0.3, 1.2, 2), (0.3, 1.2, 16), (0.9, 1.0, 3)]
