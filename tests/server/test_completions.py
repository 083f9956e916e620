"""POST /v1/completions, whole answers."""

from __future__ import annotations

import pytest
from openai.types.completion import Completion

from tests.server.conftest import in_process
from tests.server.fake_engine import FakeEngine, Script


async def answered(api, **fields):
    response = await api.complete(**fields)
    assert response.status_code == 200, response.text
    return Completion.model_validate(response.json())


async def test_answer(api):
    answer = await answered(api, prompt="Once", max_tokens=2)
    assert answer.object == "text_completion"
    assert answer.id.startswith("cmpl-")
    assert [(choice.index, choice.text, choice.finish_reason) for choice in answer.choices] == [(0, "Hello", "length")]
    bos = api.engine.tokenizer.bos_token_id
    assert api.engine.calls[0].prompt == [bos, *api.engine.tokenizer.encode("Once", False)]


async def test_max_tokens_is_16_unless_said(api):
    await answered(api)
    await answered(api, max_tokens=None)
    await answered(api, max_tokens=3)
    assert [call.params.max_tokens for call in api.engine.calls] == [16, 16, 3]


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("ab", 1),
        (["ab", "c"], 2),
        ([5, 6, 7], 1),
        ([[5, 6], [7]], 2),
        ([ [ 5 ] ], 1),
    ],
)  # fmt: skip
async def test_forms_of_a_prompt(api, prompt, prompts):
    answer = await answered(api, prompt=prompt, add_special_tokens=False)
    assert len(answer.choices) == len(api.engine.calls) == prompts
    sent = [call.prompt for call in api.engine.calls]
    texts = [prompt] if isinstance(prompt, str) else prompt
    if isinstance(texts[0], str):
        assert sent == [api.engine.tokenizer.encode(text, False) for text in texts]
    else:
        assert sent == (prompt if isinstance(prompt[0], list) else [prompt])
    assert answer.usage.prompt_tokens == sum(map(len, sent))


@pytest.mark.parametrize(
    "prompt", ["", [], [""], ["a", ""], [[]], [[1], []], [1, "a"], ["a", 1], [[1, "a"]], {}, 3, True, [True], [1.5]]
)
async def test_wrong_prompts_are_refused(api, prompt):
    response = await api.complete(prompt=prompt)
    assert response.status_code == 400
    assert response.json()["error"]["param"].startswith("prompt")
    assert not api.engine.calls


async def test_a_missing_prompt_is_named(api):
    response = await api.post("/v1/completions", {"model": "fake-model"})
    assert response.json()["error"] == {
        "message": "prompt is missing.",
        "type": "invalid_request_error",
        "param": "prompt",
        "code": None,
    }
    assert (await api.complete(prompt=None)).status_code == 400


async def test_choices_are_prompt_major_and_each_prompt_counts_once():
    async with in_process(FakeEngine(script=Script(num_cached_tokens=2))) as api:
        answer = await answered(api, prompt=[[1, 2, 3], [4, 5]], n=2, echo=True, return_token_ids=True)
    decode = api.engine.tokenizer.decode
    starts = [decode([1, 2, 3])] * 2 + [decode([4, 5])] * 2
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert [choice.text for choice in answer.choices] == [start + "Hello, wörld!" for start in starts]
    assert answer.usage.prompt_tokens == 5
    assert answer.usage.completion_tokens == 20
    assert answer.usage.prompt_tokens_details.cached_tokens == 4


async def test_echo_repeats_the_text_of_the_prompt(api):
    answer = await answered(api, prompt="Say: ", echo=True)
    assert answer.choices[0].text == "Say: Hello, wörld!"


async def test_logprobs_are_parallel_lists(api):
    logprobs = (await answered(api, logprobs=2)).choices[0].logprobs
    assert logprobs.tokens == ["Hel", "lo", ", ", "wörld", "!"]
    assert logprobs.token_logprobs == [-1.5] * 5
    assert logprobs.text_offset == [0, 3, 5, 7, 12]
    assert logprobs.top_logprobs[0] == {"Hel": -1.5, "a": -0.5}


async def test_logprobs_0_gives_the_chosen_token_s(api):
    logprobs = (await answered(api, logprobs=0)).choices[0].logprobs
    assert logprobs.top_logprobs[0] == {"Hel": -1.5}
    assert api.engine.calls[0].params.logprobs == 0


async def test_best_of_is_served_where_it_says_nothing(api):
    await answered(api, n=2, best_of=2)
    response = await api.complete(n=1, best_of=2)
    assert (response.status_code, response.json()["error"]["param"]) == (400, "best_of")


async def test_without_a_tokenizer_token_ids_are_answered_with_token_ids():
    async with in_process(FakeEngine(tokenizer=None, script=Script(pieces=("", "")))) as api:
        response = await api.complete(prompt=[1, 2], return_token_ids=True, logprobs=1)
        assert response.status_code == 200, response.text
        assert response.json()["choices"][0]["token_ids"] == [0, 1]
        assert api.engine.calls[0].params.detokenize is False
        assert (await api.complete(prompt="text")).json()["error"]["param"] == "prompt"
        assert (await api.complete(prompt=[1], stop="x")).json()["error"]["param"] == "stop"


async def test_a_long_text_is_tokenized_beside_the_loop():
    engine = FakeEngine()
    engine.info.max_model_len = 10_000
    async with in_process(engine) as api:
        await answered(api, prompt="x" * 5000)
    assert len(engine.calls[0].prompt) == 5001


async def test_a_prompt_over_the_context_is_refused_with_openai_s_words(api):
    prompts = ("x" * 600, "x" * 100_000, [1] * 600, [1] * 100_000, [[1]] * 3 + [[1] * 600])
    for prompt in prompts:
        error = (await api.complete(prompt=prompt, max_tokens=1)).json()["error"]
        assert error["message"].startswith("This model's maximum context length is 512 tokens. However, you requested ")
        assert error["code"] == "context_length_exceeded"
    assert not api.engine.running


async def test_no_prompt_runs_if_one_cannot():
    engine = FakeEngine()
    async with in_process(engine) as api:
        response = await api.complete(prompt=[[1], [2], [1000]])
    assert response.status_code == 400
    assert not engine.calls
