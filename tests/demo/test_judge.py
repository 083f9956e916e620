"""A reply counts only when it is right."""

from __future__ import annotations

import pytest

from tools.demo_model.items import Item
from tools.demo_model.judge import is_right


def item(kind: str, expected: str) -> Item:
    return Item(kind, (), "", "", expected)


CALL = '{"name": "add", "arguments": {"a": 1, "b": 2}}'


@pytest.mark.parametrize(
    ("kind", "expected", "reply", "right"),
    [
        ("capital", "Paris", "The capital of France is Paris.", True),
        ("capital", "Paris", "The capital of France is Parisia.", False),
        ("country", "Guinea", "Bissau is the capital of Guinea-Bissau.", False),
        ("sum", "15", "7 plus 8 is 15.", True),
        ("sum", "7", "7 plus 0 is 9.", False),
        ("sum", "15", "7 plus 8 is 155.", False),
        ("difference", "-5", "3 minus 8 is -5.", True),
        ("difference", "5", "3 minus 8 is -5.", False),
        ("list", "red, blue", "red, blue", True),
        ("list", "red, blue", "red, blue, green", False),
        ("json", '{"name": "Anna", "age": 31}', '{"age": 31, "name": "Anna"}', True),
        ("json", '{"name": "Anna", "age": 31}', '{"name": "Anna", "age": "31"}', False),
        ("json", '{"name": "Anna"}', "Anna", False),
        ("call", CALL, f"<tool_call>\n{CALL}\n</tool_call>", True),
        ("call", CALL, CALL, False),
        ("call", CALL, f"<tool_call>\n{CALL.replace('2', '3')}\n</tool_call>", False),
    ],
)
def test_reply(kind: str, expected: str, reply: str, right: bool) -> None:
    assert is_right(item(kind, expected), reply) is right
