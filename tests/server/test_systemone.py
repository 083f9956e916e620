"""The System One API, by hand: no client of it is a package."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.server.conftest import in_process
from tests.server.fake_engine import MODEL, FakeEngine, Script, byte_tokenizer
from tests.server.test_decisions import prompts, with_words
from tests.server.test_errors import check_error

SCORES = {"A": 0.1, "B": 0.3, "0": 0.2, "1": 0.05, "2": 0.05}
NOUL = {"type": "noul", "instructions": "Is it urgent?"}
CHOICE = {"type": "choice", "instructions": "Which team?", "criteria": {"billing": None, "other": "Anything else"}}
SCORE = {"type": "score", "criteria": ["calm", {"tone": "cross"}, "furious"]}
PATH = "/v1/systemone"


def engine() -> FakeEngine:
    """B is its most likely token."""
    likely = byte_tokenizer().encode("B")[-1]
    return FakeEngine(script=Script(pieces=("B",), scores=SCORES, first_id=likely))


async def test_questions_are_answered_by_name():
    async with in_process(engine()) as api:
        questions = {"team": CHOICE, "how angry": SCORE, "urgent": NOUL}
        response = await api.post(PATH, {"state": {"mail": ["Help!"]}, "questions": questions})
        assert response.status_code == 200, response.text
        body = response.json()
        assert body == {
            "model": MODEL,
            "answers": {
                "team": {
                    "type": "choice",
                    "choice": "other",
                    "confidence": pytest.approx(0.5),
                    "probabilities": {"billing": pytest.approx(0.25), "other": pytest.approx(0.75)},
                },
                "how angry": {
                    "type": "score",
                    "score": pytest.approx(0.5),
                    "legend": {"0": "calm", "1": {"tone": "cross"}, "2": "furious"},
                    # the distance is (1/6 + 2/6), and by chance it is 2/3
                    "confidence": pytest.approx(0.25),
                    "probabilities": {"0": pytest.approx(2 / 3), "1": pytest.approx(1 / 6), "2": pytest.approx(1 / 6)},
                },
                "urgent": {"type": "noul", "noul": pytest.approx(0.25)},
            },
            "usage": {"input_tokens": sum(len(call.prompt) for call in api.engine.calls), "output_tokens": 0},
            "diagnostics": {
                "team": {"label_mass": pytest.approx(0.4), "argmax_is_label": True},
                "how angry": {"label_mass": pytest.approx(0.3), "argmax_is_label": False},
                "urgent": {"label_mass": pytest.approx(0.4), "argmax_is_label": True},
            },
        }


async def test_the_model_is_shown_the_state_and_one_question():
    async with in_process(engine()) as api:
        questions = {"team": CHOICE, "angry": SCORE}
        assert (await api.post(PATH, {"state": {"mail": ["Help!"]}, "questions": questions})).status_code == 200
        first, second = prompts(api)
        assert first == (
            '<user>{"mail":["Help!"]}\n\nWhich team?\n\nA: billing\nB: other - Anything else\n\n'
            "Answer with one of the labels before the colons only.</user><assistant>"
        )
        assert second == (
            '<user>{"mail":["Help!"]}\n\n0: calm\n1: {"tone":"cross"}\n2: furious\n\n'
            "Answer with one of the labels before the colons only.</user><assistant>"
        )


async def test_yes_and_no_are_described_by_their_criteria():
    question = {**NOUL, "criteria": {"true": "It is due today.", "false": None}}
    async with in_process(with_words("Yes", "No", "Ġyes", "no")) as api:
        body = (await api.post(PATH, {"state": "Help!", "questions": {"urgent": question}})).json()
        assert body["answers"]["urgent"]["noul"] == pytest.approx(0.9)
        assert body["diagnostics"]["urgent"]["label_mass"] == pytest.approx(0.5)
        assert prompts(api)[0].startswith(
            "<user>Help!\n\nIs it urgent?\n\nYes: It is due today.\n\nAnswer with Yes or No only.<"
        )
    async with in_process(engine()) as api:
        await api.post(PATH, {"state": "Help!", "questions": {"urgent": question}})
        assert "\n\nA: Yes - It is due today.\nB: No\n\n" in prompts(api)[0]


async def test_one_option_is_certain():
    """Whatever the model makes of it, which the diagnostics say."""
    questions = {"one": {"type": "choice", "criteria": {"x": None}}, "level": {"type": "score", "criteria": ["x"]}}
    async with in_process(FakeEngine()) as api:
        body = (await api.post(PATH, {"state": "x", "questions": questions})).json()
        assert body["answers"]["one"] == {
            "type": "choice", "choice": "x", "confidence": 1.0, "probabilities": {"x": 1.0}
        }  # fmt: skip
        assert (body["answers"]["level"]["score"], body["answers"]["level"]["confidence"]) == (0.0, 1.0)
        assert body["diagnostics"]["one"] == {"label_mass": 0.0, "argmax_is_label": False}


async def test_a_cache_salt_and_a_priority_are_passed_on():
    async with in_process(engine()) as api:
        body = {"state": "x", "questions": {"q": CHOICE}, "priority": 3, "cache_salt": "s", "assets": {}}
        assert (await api.post(PATH, body)).status_code == 200
        (call,) = api.engine.calls
        assert (call.priority, call.cache_salt) == (3, "s")


async def test_long_requests_are_read_as_short_ones():
    limits = engine()
    limits.info = type(limits.info)(max_model_len=200_000)
    async with in_process(limits) as api:
        questions = {f"q{number}": CHOICE for number in range(63)} | {"bad": {**CHOICE, "criteria": {}}}
        body = {"state": "x" * 70_000, "questions": questions}
        check_error(await api.post(PATH, body), 400, "questions.bad.criteria")
        body["questions"] = {"q": CHOICE}
        assert (await api.post(PATH, body)).json()["answers"]["q"]["choice"] == "other"


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"state": " "}, "state"),
    ({"state": 5}, "state"),
    ({"state": None}, "state"),
    ({"state": "x" * 600}, "state"),
    ({"stream": True}, "stream"),
    ({"images": []}, "images"),
    ({"assets": {"img": {"data_base64": ""}}}, "assets"),
    ({"cache_salt": "x" * 10_000}, "cache_salt"),
    ({"questions": {}}, "questions"),
    ({"questions": []}, "questions"),
    ({"questions": {f"q{number}": NOUL for number in range(65)}}, "questions"),
    ({"questions": {"": NOUL}}, "questions"),
    ({"questions": {"x" * 257: NOUL}}, "questions"),
    ({"questions": {"q": 5}}, "questions.q"),
    ({"questions": {"q": {"instructions": "x"}}}, "questions.q.type"),
    ({"questions": {"q": {"type": "predicate"}}}, "questions.q.type"),
    ({"questions": {"q": {**NOUL, "weight": 1}}}, "questions.q.weight"),
    ({"questions": {"q": {**NOUL, "criteria": {"maybe": "x"}}}}, "questions.q.criteria.maybe"),
    ({"questions": {"q": {"type": "noul"}}}, "questions.q.instructions"),
    ({"questions": {"q": {**NOUL, "instructions": 5}}}, "questions.q.instructions"),
    ({"questions": {"q": {"type": "choice", "instructions": "x"}}}, "questions.q.criteria"),
    ({"questions": {"q": {**CHOICE, "criteria": {}}}}, "questions.q.criteria"),
    ({"questions": {"q": {**CHOICE, "criteria": {str(n): None for n in range(256)}}}}, "questions.q.criteria"),
    ({"questions": {"q": {**SCORE, "criteria": []}}}, "questions.q.criteria"),
    ({"questions": {"q": {**SCORE, "criteria": ["x"] * 33}}}, "questions.q.criteria"),
    ({"questions": {"a": NOUL, "what?": {"type": "noul"}}}, "questions[1].instructions"),
]


@pytest.mark.parametrize(("fields", "param"), WRONG, ids=range(len(WRONG)))
async def test_what_is_wrong_is_refused_by_name(fields, param):
    async with in_process(engine()) as api:
        body = {"state": "x", "questions": {"q": NOUL}, **fields}
        code = "context_length_exceeded" if fields.get("state") == "x" * 600 else None
        message = check_error(await api.post(PATH, body), 400, param, code)
        assert "\n" not in message
        assert not api.engine.calls


async def test_a_field_that_is_no_name_is_not_said_back():
    async with in_process(engine()) as api:
        body = {"state": "x", "questions": {"q": {**NOUL, "a secret": 1}}}
        message = check_error(await api.post(PATH, body), 400, "questions.q")
        assert message == "questions.q has a field that is not known; remove it."
        check_error(await api.post(PATH, {"state": "x", "questions": {"q": NOUL}, "a secret": 1}), 400)


async def test_another_model_is_not_decided_with(api):
    body = {"model": "other", "state": "x", "questions": {"q": NOUL}}
    check_error(await api.post(PATH, body), 404, "model", "model_not_found")


async def test_the_document_says_what_a_question_is(api):
    document = json.loads((await api.client.get("/openapi.json")).content)
    questions = document["components"]["schemas"]["SystemOneRequest"]["properties"]["questions"]
    assert questions["maxProperties"] == 64
