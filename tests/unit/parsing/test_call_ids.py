"""Ids of earlier calls are what the model knows, and results stay with their calls."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tessera.parsing.call_ids import with_known_ids
from tessera.parsing.formats import CALLS


def called(*ids: str | None) -> dict[str, Any]:
    calls = [
        {"function": {"name": f"f{number}"}, **({} if one is None else {"id": one})} for number, one in enumerate(ids)
    ]
    return {"role": "assistant", "tool_calls": calls}


def result(call_id: str | None) -> dict[str, Any]:
    return {"role": "tool", "content": "x", **({} if call_id is None else {"tool_call_id": call_id})}


def ids_of(messages: list[dict[str, Any]]) -> tuple[list[str], list[str]]:
    calls = [call["id"] for message in messages for call in message.get("tool_calls", ())]
    return calls, [message["tool_call_id"] for message in messages if message["role"] == "tool"]


HISTORIES = [
    [called("call_1", "toolu_02"), result("toolu_02"), result("call_1"), called("call_3"), result("call_3")],
    [called(None, None), result(None), result(None)],
    [called("abcdefghi"), result("abcdefghi")],
    [called("ünicode_1"), result("ünicode_1")],
]


@pytest.mark.parametrize(
    ("family", "form"),
    [
        ("mistral", r"[A-Za-z0-9]{9}"),
        ("mistral_list", r"[A-Za-z0-9]{9}"),
        ("kimi_k2", r"functions\.\w+:\d+"),
    ],
)
@pytest.mark.parametrize("history", HISTORIES, ids=range(len(HISTORIES)))
def test_ids_have_the_form_that_the_model_knows(family: str, form: str, history: list[dict[str, Any]]) -> None:
    messages = [
        {**one, "tool_calls": [dict(call) for call in one["tool_calls"]]} if "tool_calls" in one else dict(one)
        for one in history
    ]
    given = [message.get("tool_call_id") for message in history if message["role"] == "tool"]
    own = [call.get("id") for message in history for call in message.get("tool_calls", ())]
    with_known_ids(messages, CALLS[family])
    calls, results = ids_of(messages)
    assert all(re.fullmatch(form, one) for one in calls)
    assert len(set(calls)) == len(calls)
    order = list(range(len(calls))) if None in given else [own.index(one) for one in given]
    assert results == [calls[place] for place in order]


def test_ids_in_that_form_stay() -> None:
    for family, known in (("mistral", "abcDEF123"), ("kimi_k2", "functions.f:7"), ("hermes", "any id")):
        messages = [called(known), result(known)]
        with_known_ids(messages, CALLS[family])
        assert ids_of(messages) == ([known], [known])


def test_a_result_of_no_call_has_the_form_too() -> None:
    messages = [result("call_1"), result(None)]
    with_known_ids(messages, CALLS["mistral"])
    assert all(re.fullmatch(r"[a-z0-9]{9}", one) for one in ids_of(messages)[1])
