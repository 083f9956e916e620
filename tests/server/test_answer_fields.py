"""What an answer tells beside its text, and what a request says of its prompt."""

from __future__ import annotations

import dataclasses

import pytest
from tokenizers import AddedToken

from tessera.sampling_params import MAX_N
from tessera.server.openai.infill import TOKENS
from tessera.server.served_model import fingerprint
from tessera.server.settings import SERVER_FLAGS, Limits, ServerSettings
from tests.server.conftest import in_process
from tests.server.fake_engine import MAX_MODEL_LEN, FakeEngine, byte_tokenizer
from tests.server.sse import check_chat, check_completion, text_of
from tests.server.test_errors import check_error

USER = {"role": "user", "content": "Hi"}


def ids(api, text):
    return api.engine.tokenizer.encode(text, False)


# ---- the prompt's token ids --------------------------------------------------------------------------------------


async def test_a_chat_tells_the_ids_of_its_prompt(api):
    answer = (await api.chat(return_token_ids=True)).json()
    assert answer["prompt_token_ids"] == api.engine.calls[-1].prompt
    assert "prompt_token_ids" not in (await api.chat()).json()


async def test_each_choice_of_a_completion_tells_the_ids_of_its_prompt(api):
    choices = (await api.complete(prompt=[[1, 2], [3]], return_token_ids=True)).json()["choices"]
    assert [choice["prompt_token_ids"] for choice in choices] == [[1, 2], [3]]
    assert "prompt_token_ids" not in (await api.complete()).json()["choices"][0]


async def test_the_first_event_of_each_choice_tells_the_ids_of_its_prompt(api):
    chunks = check_chat((await api.chat(return_token_ids=True, stream=True, n=2)).text, n=2)
    told = [(chunk["choices"][0]["index"], chunk.get("prompt_token_ids")) for chunk in chunks]
    assert [(index, found) for index, found in told if found] == [(n, api.engine.calls[-1].prompt) for n in (0, 1)]
    body = (await api.complete(prompt=[[1, 2], [3]], return_token_ids=True, stream=True)).text
    choices = [chunk["choices"][0] for chunk in check_completion(body, choices=2)]
    told = [(choice["index"], choice["prompt_token_ids"]) for choice in choices if "prompt_token_ids" in choice]
    assert sorted(told) == [(0, [1, 2]), (1, [3])]
    assert "token_ids" in choices[0]


# ---- the fingerprint ---------------------------------------------------------------------------------------------


async def test_answers_and_events_have_one_fingerprint(api):
    mark = (await api.chat()).json()["system_fingerprint"]
    assert mark.startswith("fp_")
    assert (await api.complete()).json()["system_fingerprint"] == mark
    chunks = check_chat((await api.chat(stream=True)).text)
    assert {chunk["system_fingerprint"] for chunk in chunks} == {mark}


def test_a_fingerprint_changes_with_what_changes_numbers():
    config = FakeEngine().config
    others = [
        dataclasses.replace(config, seed=1),
        dataclasses.replace(config, platform="other:Platform"),
        dataclasses.replace(config, model=dataclasses.replace(config.model, dtype="float16")),
        dataclasses.replace(config, cache=dataclasses.replace(config.cache, dtype="fp8")),
        dataclasses.replace(config, parallel=dataclasses.replace(config.parallel, expert_parallel=True)),
    ]
    marks = [fingerprint("m", config), fingerprint("n", config), *(fingerprint("m", other) for other in others)]
    assert len(set(marks)) == len(marks)
    assert fingerprint("m", FakeEngine().config) == marks[0]


# ---- truncation --------------------------------------------------------------------------------------------------


async def test_the_last_tokens_of_a_prompt_are_kept(api):
    assert (await api.complete(prompt="abcdef", truncate_prompt_tokens=3)).status_code == 200
    assert api.engine.calls[-1].prompt == ids(api, "def")
    assert (await api.complete(prompt=[[1, 2, 3], [4]], truncate_prompt_tokens=2)).status_code == 200
    assert [call.prompt for call in api.engine.calls[-2:]] == [[2, 3], [4]]
    assert (await api.chat(truncate_prompt_tokens=11.0)).status_code == 200
    assert api.engine.calls[-1].prompt == ids(api, "<assistant>")


async def test_the_side_that_is_cut_may_be_the_right_one(api):
    for side, kept in ((None, "def"), ("left", "def"), ("right", "abc")):
        fields = {"truncate_prompt_tokens": 3, "truncation_side": side}
        assert (await api.complete(prompt="abcdef", add_special_tokens=False, **fields)).status_code == 200
        assert api.engine.calls[-1].prompt == ids(api, kept)
        assert (await api.complete(prompt=ids(api, "abcdef"), **fields)).status_code == 200
        assert api.engine.calls[-1].prompt == ids(api, kept)
    assert (await api.chat(truncate_prompt_tokens=6, truncation_side="right")).status_code == 200
    assert api.engine.calls[-1].prompt == ids(api, "<user>")
    assert (await api.complete(prompt="abc", truncation_side="right")).status_code == 200
    for response in (await api.chat(truncation_side="middle"), await api.complete(truncation_side="")):
        assert "left or right" in check_error(response, 400, "truncation_side")
    check_error(await api.chat(truncation_side=1), 400, "truncation_side")


async def test_the_engine_is_told_the_language_of_an_answer(api):
    assert (await api.complete(target_language="fra_Latn")).status_code == 200
    assert api.engine.calls[-1].params.target_language == "fra_Latn"
    check_error(await api.complete(target_language="a" * 65), 400, "target_language")


@pytest.mark.parametrize("prompt", ["x" * 5000, [1] * 5000])
async def test_minus_one_keeps_what_leaves_room_for_the_answer(api, prompt):
    assert (await api.complete(prompt=prompt, max_tokens=5, truncate_prompt_tokens=-1)).status_code == 200
    assert len(api.engine.calls[-1].prompt) == MAX_MODEL_LEN - 5
    assert (await api.chat(messages=[{**USER, "content": "x" * 5000}], truncate_prompt_tokens=-1)).status_code == 200
    assert len(api.engine.calls[-1].prompt) == MAX_MODEL_LEN - 1


async def test_an_echo_of_a_truncated_prompt_is_what_was_kept(api):
    answer = (await api.complete(prompt="abcdef", truncate_prompt_tokens=2, echo=True, max_tokens=1)).json()
    assert answer["choices"][0]["text"] == "efHel"


@pytest.mark.parametrize("value", [0, -2, MAX_MODEL_LEN + 1, 1.5, "3"])
async def test_a_truncation_has_its_range(api, value):
    for response in (await api.chat(truncate_prompt_tokens=value), await api.complete(truncate_prompt_tokens=value)):
        check_error(response, 400, "truncate_prompt_tokens")


async def test_ids_to_truncate_have_a_limit_too():
    async with in_process(FakeEngine(), ServerSettings(limits=Limits(detokenize_tokens=1000))) as api:
        response = await api.complete(prompt=[1] * 1001, truncate_prompt_tokens=5)
        check_error(response, 400, "prompt", "context_length_exceeded")


# ---- echo and suffix ---------------------------------------------------------------------------------------------

SAID = [USER, {"role": "assistant", "content": [{"type": "text", "text": "Well, "}]}]


async def test_a_chat_echoes_the_assistant_s_last_message(api):
    answer = (await api.chat(messages=SAID, echo=True, continue_final_message=True)).json()
    assert answer["choices"][0]["message"]["content"] == "Well, Hello, wörld!"
    assert (await api.chat(echo=True)).json()["choices"][0]["message"]["content"] == "Hello, wörld!"
    chunks = check_chat((await api.chat(messages=SAID, echo=True, stream=True, n=2)).text, n=2)
    assert [text_of(chunks, index) for index in range(2)] == ["Well, Hello, wörld!"] * 2


def with_tokens(tokens):
    tokenizer = byte_tokenizer()
    tokenizer._tokenizer.add_special_tokens([AddedToken(token, special=True) for token in tokens])
    engine = FakeEngine(tokenizer=type(tokenizer)(tokenizer._tokenizer, {"bos_token": "<bos>"}, {}))
    engine.config = dataclasses.replace(engine.config, model=dataclasses.replace(engine.config.model, vocab_size=300))
    return engine


@pytest.mark.parametrize("tokens", TOKENS, ids=lambda tokens: tokens[0])
async def test_a_suffix_is_filled_in_with_the_model_s_tokens(tokens):
    engine = with_tokens(tokens)
    async with in_process(engine) as api:
        assert (await api.complete(prompt="ab", suffix="cd", add_special_tokens=False)).status_code == 200
        before, between, behind = ([engine.tokenizer._tokenizer.token_to_id(token)] for token in tokens)
        assert engine.calls[-1].prompt == [*before, *ids(api, "ab"), *between, *ids(api, "cd"), *behind]
        check_error(await api.complete(prompt=[1], suffix="cd"), 400, "suffix")
        check_error(await api.complete(suffix="cd", echo=True), 400, "echo")


async def test_a_model_without_such_tokens_refuses_a_suffix(api):
    assert "no tokens to fill in" in check_error(await api.complete(suffix="cd"), 400, "suffix")
    assert (await api.complete(suffix="")).status_code == 200


# ---- limits that a flag raises -----------------------------------------------------------------------------------


async def test_more_prompts_and_answers_where_the_operator_says_so(api):
    check_error(await api.complete(prompt=["x"] * 65), 400, "prompt")
    check_error(await api.complete(n=129), 400, "n")
    async with in_process(FakeEngine(), ServerSettings(limits=Limits(prompts=100, n=200, choices=1000))) as large:
        assert len((await large.complete(prompt=["x"] * 100, n=10)).json()["choices"]) == 1000
        assert len((await large.chat(n=200)).json()["choices"]) == 200
        check_error(await large.complete(prompt=["x"] * 100, n=11), 400, "n")


def test_the_flag_goes_as_far_as_sampling_params_does():
    (flag,) = (flag for flag in SERVER_FLAGS if flag.name == "max_n")
    assert flag.high == MAX_N
