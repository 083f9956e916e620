"""The Decisions API, by OpenAI's client and by hand; answers are held against its types."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import tokenizers
from openai.types import Decision
from tokenizers import decoders, models, pre_tokenizers

from tessera.errors import OverloadedError
from tessera.server.settings import ServerSettings
from tests.server.conftest import in_process, on_socket
from tests.server.fake_engine import MODEL, TEMPLATE, FakeEngine, FakeInfo, Script, byte_tokenizer
from tests.server.test_errors import check_error

SCORES = {"Y": 0.0, "A": 0.1, "B": 0.3, "C": 0.0, "0": 0.2, "1": 0.05, "2": 0.05}
CHOICE = {
    "type": "choice",
    "name": "team",
    "instructions": "Which team?",
    "choices": [{"value": "billing"}, {"value": True, "description": "Anything else"}, {"value": "true"}],
}
SCORE = {
    "type": "score",
    "instructions": [{"type": "input_text", "text": "How angry?"}, {"type": "input_json", "data": {"a": 1}}],
    "levels": [{"label": "calm"}, {"label": "cross", "description": "loud"}, {"label": "furious"}],
}
PREDICATE = {"type": "predicate", "name": "urgent", "instructions": "It is urgent."}


def engine(scores: dict[str, float] = SCORES, **fields: Any) -> FakeEngine:
    return FakeEngine(script=Script(scores=scores, num_cached_tokens=3), **fields)


def with_words(*words: str) -> FakeEngine:
    """The tokenizer of bytes, with a token for each of these words too."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    pieces = dict.fromkeys([*alphabet, *(word[:end] for word in words for end in range(2, len(word) + 1))])
    merges = [(piece[:-1], piece[-1]) for piece in pieces if len(piece) > 1]
    made = tokenizers.Tokenizer(models.BPE(vocab={piece: i for i, piece in enumerate(pieces)}, merges=merges))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    found = engine({"Yes": 0.2, "Ġyes": 0.0, " yes": 0.25, "No": 0.05, "x": 0.5})
    found.tokenizer = type(byte_tokenizer())(made, {}, {"default": TEMPLATE})
    found.config = replace(found.config, model=replace(found.config.model, vocab_size=1000))
    return found


def prompts(api: Any) -> list[str]:
    return [api.engine.tokenizer.decode(call.prompt) for call in api.engine.calls]


async def test_a_client_gets_probabilities():
    async with on_socket(engine()) as server, server.openai() as client:
        decision = await client.decisions.create(model=MODEL, input="I was charged twice.", questions=[CHOICE, SCORE])
        Decision.model_validate(decision.model_dump(), strict=True)
        choice, score = decision.answers
        assert (choice.type, choice.name, choice.choice) == ("choice", "team", True)
        assert [(one.value, one.probability) for one in choice.probabilities] == [
            ("billing", pytest.approx(0.25)),
            (True, pytest.approx(0.75)),
            ("true", 0.0),
        ]
        assert choice.confidence == pytest.approx((0.75 - 1 / 3) / (2 / 3))
        assert choice.label_mass == pytest.approx(0.4)
        assert (score.type, score.name, score.score) == ("score", None, pytest.approx(0.5))
        assert [(one.value, one.label) for one in score.probabilities] == [(0, "calm"), (1, "cross"), (2, "furious")]
        shares = [0.2 / 0.3, 0.05 / 0.3, 0.05 / 0.3]
        spread = math.sqrt(sum(share * (level - 0.5) ** 2 for level, share in enumerate(shares)))
        assert score.confidence == pytest.approx(1 - spread)
        tokens = sum(len(call.prompt) for call in server.engine.calls)
        usage = decision.usage
        assert (usage.input_tokens, usage.output_tokens, usage.total_tokens) == (tokens, 0, tokens)
        assert usage.input_tokens_details.cached_tokens == 6


async def test_the_model_is_shown_the_input_and_one_question():
    async with in_process(engine()) as api:
        body = {"input": "I was charged twice.", "questions": [CHOICE, SCORE]}
        assert (await api.post("/v1/decisions", body)).status_code == 200
        first, second = prompts(api)
        assert first == (
            "<user>I was charged twice.\n\nWhich team?\n\nA: billing\nB: true - Anything else\nC: true\n\n"
            "Answer with one of the labels before the colons only.</user><assistant>"
        )
        assert second == (
            '<user>I was charged twice.\n\nHow angry?\n{"a":1}\n\n0: calm\n1: cross - loud\n2: furious\n\n'
            "Answer with one of the labels before the colons only.</user><assistant>"
        )
        params = [call.params for call in api.engine.calls]
        assert [(one.max_tokens, one.temperature) for one in params] == [(1, 0.0)] * 2
        names = [api.engine.tokenizer.token_text(token).text for token in params[0].logprob_token_ids]
        assert names == ["A", "B", "C"]


async def test_a_predicate_is_answered_in_any_spelling():
    async with in_process(with_words("Yes", "No", "Ġyes", "no")) as api:
        body = (await api.post("/v1/decisions", {"input": "Help!", "questions": [PREDICATE]})).json()
        (answer,) = body["answers"]
        assert (answer["type"], answer["name"]) == ("predicate", "urgent")
        assert answer["probability"] == pytest.approx(0.9)
        assert answer["label_mass"] == pytest.approx(0.5)
        assert prompts(api)[0].startswith(
            "<user>Help!\n\nIs the following true?\nIt is urgent.\n\nAnswer with Yes or No"
        )


async def test_a_tokenizer_without_the_words_has_letters():
    async with in_process(engine()) as api:
        body = (await api.post("/v1/decisions", {"input": "Help!", "questions": [PREDICATE]})).json()
        assert body["answers"][0]["probability"] == pytest.approx(0.25)
        assert "It is urgent.\n\nA: Yes\nB: No\n\nAnswer with one of the labels" in prompts(api)[0]


async def test_a_model_that_would_say_something_else_refuses():
    async with in_process(engine({"A": 0.004, "0": 0.5})) as api:
        body = (await api.post("/v1/decisions", {"input": "x", "questions": [CHOICE, SCORE]})).json()
        assert [answer["type"] for answer in body["answers"]] == ["refusal", "score"]
        assert body["answers"][0] == {"type": "refusal", "name": "team", "label_mass": pytest.approx(0.004)}


async def test_a_conversation_is_judged():
    items = [
        {"role": "developer", "content": "Be strict."},
        {"role": "user", "content": [{"type": "input_text", "text": "Hi"}, {"type": "input_json", "data": [{"b": 2}]}]},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": '{"x": 1}'},
        {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "done"}]},
        {"type": "custom_tool_call", "call_id": "d", "name": "g", "input": "raw"},
        {"type": "custom_tool_call_output", "call_id": "d", "output": "ok"},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]},
    ]
    template = (
        "{% for m in messages %}<{{ m.role }}>{{ m.content or '' }}{% for c in m.tool_calls or [] %}"
        "[{{ c.function.name }} {{ c.function.arguments }}]{% endfor %}{% endfor %}<assistant>"
    )
    async with in_process(engine(template=template)) as api:
        response = await api.post("/v1/decisions", {"input": items, "questions": [CHOICE]})
        assert response.status_code == 200, response.text
        (prompt,) = prompts(api)
        assert prompt.startswith(
            '<system>Be strict.<user>Hi\n[{"b":2}]<assistant>[f {"x": 1}]<tool>done<assistant>[g {"input":'
            '"raw"}]<tool>ok<assistant>No.<user>Which team?'
        )


async def test_reasoning_is_ended_at_once():
    settings = ServerSettings(reasoning_parser="deepseek_r1")
    body = {"input": "x", "questions": [CHOICE]}
    async with in_process(engine(template=TEMPLATE.replace("<assistant>", "<assistant><think>\n")), settings) as api:
        assert (await api.post("/v1/decisions", body)).status_code == 200
        assert prompts(api)[0].endswith("</user><assistant><think>\n</think>\n\n")
    switch = "{% if enable_thinking is not false %}<think>{% else %}<think></think>{% endif %}"
    async with in_process(engine(template=TEMPLATE + switch), settings) as api:
        assert (await api.post("/v1/decisions", body)).status_code == 200
        assert prompts(api)[0].endswith("</user><assistant><think></think>")


async def test_more_choices_than_letters_have_other_labels():
    many = {"type": "choice", "instructions": "x", "choices": [{"value": str(number)} for number in range(62)]}
    async with in_process(engine({"b": 0.5})) as api:
        body = (await api.post("/v1/decisions", {"input": "x", "questions": [many]})).json()
        assert body["answers"][0]["choice"] == "27"
        many["choices"].append({"value": "one more"})
        message = check_error(
            await api.post("/v1/decisions", {"input": "x", "questions": [many]}), 400, "questions[0].choices"
        )
        assert message == "questions[0].choices must have at most 62 entries for this model's tokenizer."
    numbered = with_words(*(str(number) for number in range(1, 100)))
    numbered.info = FakeInfo(max_model_len=1024)
    numbered.script.scores = {"63": 1.0}
    async with in_process(numbered) as api:
        body = (await api.post("/v1/decisions", {"input": "x", "questions": [many]})).json()
        assert body["answers"][0]["choice"] == "one more"
        assert "\n63: one more\n" in prompts(api)[0]


async def test_the_first_question_is_asked_before_the_others():
    """So that they find its input in the cache."""
    async with in_process(engine()) as api:
        seen: list[int] = []
        generate = api.engine.generate

        def watched(*given: Any, **more: Any) -> Any:
            seen.append(len(api.engine.running))
            return generate(*given, **more)

        api.engine.generate = watched
        await api.post("/v1/decisions", {"input": "x", "questions": [CHOICE] * 4})
        assert seen[:2] == [0, 0]


async def test_the_engine_has_few_of_the_questions_at_once():
    """Their answers come together, and nothing else is done while they are read."""
    async with in_process(engine()) as api:
        seen: list[int] = []
        generate = api.engine.generate

        def watched(*given: Any, **more: Any) -> Any:
            seen.append(len(api.engine.running))
            return generate(*given, **more)

        api.engine.generate = watched
        response = await api.post("/v1/decisions", {"input": "x", "questions": [CHOICE] * 60})
        assert len(response.json()["answers"]) == len(seen) == 60
        assert 1 < max(seen) + 1 <= 16


async def test_an_error_of_a_later_question_is_said_as_it_is():
    async with in_process(engine()) as api:
        generate = api.engine.generate
        asked: list[Any] = []

        def refusing(*given: Any, **more: Any) -> Any:
            asked.append(given)
            if len(asked) > 2:
                raise OverloadedError("Too many requests.")
            return generate(*given, **more)

        api.engine.generate = refusing
        response = await api.post("/v1/decisions", {"input": "x", "questions": [CHOICE] * 4})
        check_error(response, 503, kind="overloaded_error")


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"input": " "}, "input"),
    ({"input": []}, "input"),
    ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, "input[0].content[0].type"),
    ({"input": 5}, "input"),
    ({"questions": []}, "questions"),
    ({"questions": [PREDICATE] * 401}, "questions"),
    ({"questions": [{"type": "other", "instructions": "x"}]}, "questions[0].type"),
    ({"questions": [{**PREDICATE, "instructions": ""}]}, "questions[0].instructions"),
    ({"questions": [SCORE, {**SCORE, "levels": [{"label": "x"}]}]}, "questions[1].levels"),
    ({"questions": [{**SCORE, "levels": [{"label": "x"}] * 11}]}, "questions[0].levels"),
    ({"questions": [{**CHOICE, "choices": [{"value": "x"}]}]}, "questions[0].choices"),
    ({"questions": [{**CHOICE, "choices": [{"value": "x"}] * 2}]}, "questions[0].choices"),
    ({"questions": [{**CHOICE, "choices": [{"value": str(n)} for n in range(256)]}]}, "questions[0].choices"),
    ({"questions": [{**CHOICE, "name": "x" * 257}]}, "questions[0].name"),
    ({"input": "x" * 600}, "input"),
    ({"prompt_cache_key": "x" * 10_000}, "prompt_cache_key"),
]


@pytest.mark.parametrize(("fields", "param"), WRONG, ids=range(len(WRONG)))
async def test_what_is_wrong_is_refused_by_name(fields, param):
    async with in_process(engine()) as api:
        body = {"input": "x", "questions": [CHOICE], **fields}
        response = await api.post("/v1/decisions", body)
        code = "context_length_exceeded" if fields.get("input") == "x" * 600 else None
        check_error(response, 400, param, code)
        assert not api.engine.calls


async def test_an_unknown_type_is_not_said_back():
    async with in_process(engine()) as api:
        question = {"type": "secret", "instructions": "x"}
        message = check_error(
            await api.post("/v1/decisions", {"input": "x", "questions": [question]}), 400, "questions[0].type"
        )
        assert message == "questions[0].type: not one of the known values."


async def test_another_model_is_not_decided_with(api):
    body = {"model": "other", "input": "x", "questions": [CHOICE]}
    check_error(await api.post("/v1/decisions", body), 404, "model", "model_not_found")
