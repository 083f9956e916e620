"""What is tested is never trained."""

from __future__ import annotations

import json
import re
from itertools import islice, product
from random import Random

import pytest

from tools.demo_model import items
from tools.demo_model.generate import Dialogue, held_out_questions, training_dialogues
from tools.demo_model.holdout import ONE_IN, any_held_out, is_held_out, key
from tools.demo_model.items import MAKERS, TESTED, held_out_item, training_item
from tools.demo_model.table import Table, load

DIALOGUES = 6000
WORDS = {"sum": "plus", "difference": "minus", "product": "times"}


@pytest.fixture(scope="module")
def table() -> Table:
    return load()


@pytest.fixture(scope="module")
def dialogues() -> list[Dialogue]:
    return list(islice(training_dialogues(2026), DIALOGUES))


def replies(dialogues: list[Dialogue]) -> list[str]:
    return [message["content"] for turns in dialogues for message in turns if message["role"] == "assistant"]


def test_equal_seeds_give_equal_dialogues() -> None:
    first, again, other = (list(islice(training_dialogues(seed), 50)) for seed in (3, 3, 4))
    assert first == again
    assert first != other


def test_equal_seeds_give_equal_questions() -> None:
    assert held_out_questions(40) == held_out_questions(40)
    assert held_out_questions(40) != held_out_questions(40, seed=1)


@pytest.mark.parametrize("kind", MAKERS)
def test_training_items_are_never_held_out(table: Table, kind: str) -> None:
    rng = Random(0)
    assert not any(any_held_out(training_item(table, rng, kind).keys) for _ in range(500))


@pytest.mark.parametrize("kind", TESTED)
def test_test_items_are_always_held_out(table: Table, kind: str) -> None:
    rng = Random(0)
    assert all(any_held_out(held_out_item(table, rng, kind).keys) for _ in range(50))


def test_without_the_rule_held_out_items_would_be_drawn(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(items, "any_held_out", lambda keys: False)
    rng = Random(0)
    assert any(any_held_out(training_item(table, rng, "sum").keys) for _ in range(500))


def test_no_operand_pair_of_the_test_is_answered_in_training(dialogues: list[Dialogue]) -> None:
    found = 0
    for reply in replies(dialogues):
        for kind, word in WORDS.items():
            for a, b in re.findall(rf"(\d+) {word} (\d+)", reply):
                assert not is_held_out(key(kind, a, b)), reply
                found += 1
    assert found > 3000


def test_no_question_about_a_held_out_fact_and_wording_is_asked_in_training(
    table: Table, dialogues: list[Dialogue]
) -> None:
    asked = {message["content"].lower().rstrip("?.!") for turns in dialogues for message in turns}
    held_out, trained = set(), set()
    for country, capital in table.capitals:
        for kind in ("capital", "country"):
            for index, wording in enumerate(table.wordings[kind]):
                question = wording.format(country=country, Country=country, capital=capital).lower().rstrip("?.!")
                (held_out if is_held_out(key(kind, country, index)) else trained).add(question)
    assert not asked & held_out
    assert len(asked & trained) > len(trained) / 2


def test_no_call_or_json_of_the_test_is_written_in_training(dialogues: list[Dialogue]) -> None:
    objects = 0
    for reply in replies(dialogues):
        call = re.fullmatch(r"<tool_call>\n(.*)\n</tool_call>", reply)
        if call:
            body = json.loads(call[1])
            assert not is_held_out(key("call", body["name"], *body["arguments"].values()))
            objects += 1
        elif reply.startswith("{"):
            assert not is_held_out(key("json", reply))
            objects += 1
    assert objects > 300


def test_no_list_of_the_test_is_asked_for_in_training(table: Table, dialogues: list[Dialogue]) -> None:
    asked = {message["content"].lower().rstrip("?.!") for turns in dialogues for message in turns}
    held_out, trained = set(), set()
    for topic, words in table.list_topics.items():
        for first, count in ((at, count) for at in range(5) for count in range(2, 7 - at)):
            starts = [table.list_start.format(first=words[first])] + [""] * (first == 0)
            for wording, number, start in product(
                table.wordings["list"], (table.list_numbers[count - 2], str(count)), starts
            ):
                question = wording.format(count=number, topic=topic, start=start).lower().rstrip("?.!")
                (held_out if is_held_out(key("list", topic, first, count)) else trained).add(question)
    assert len(held_out) > 500
    assert not asked & held_out
    assert len(asked & trained) > len(trained) / 8


def test_every_fact_is_taught_in_some_wordings(table: Table) -> None:
    for kind in ("capital", "country"):
        wordings = range(len(table.wordings[kind]))
        for country, _ in table.capitals:
            assert sum(not is_held_out(key(kind, country, index)) for index in wordings) >= 2


def test_the_shares_held_out_are_as_stated() -> None:
    pairs = [(a, b) for a in range(100) for b in range(100)]
    for kind in ("sum", "difference"):
        assert sum(is_held_out(key(kind, a, b)) for a, b in pairs) == pytest.approx(1000, abs=60)
    assert {kind: ONE_IN[kind] for kind in WORDS} == {"sum": 10, "difference": 10, "product": 10}
    assert {ONE_IN[kind] for kind in TESTED if kind not in WORDS} == {5}


def test_the_questions_cover_every_kind_evenly() -> None:
    questions = held_out_questions(200)
    assert len({messages[-1]["content"] for _, messages in questions}) == 200
    assert {kind: sum(item.kind == kind for item, _ in questions) for kind in TESTED} == dict.fromkeys(TESTED, 25)
