"""The input of a custom tool is read out of its arguments, in whatever pieces they arrive."""

from __future__ import annotations

import json
import random

import pytest

from tessera.parsing.custom import InputReader, arguments_of

INPUTS = ["", "abc", 'say "hi"\\n\n\t\x01', "é😀\u2028", "\\\\u0041", "{}"]


def read(pieces: list[str]) -> str:
    reader = InputReader()
    return "".join([*(reader.feed(piece) for piece in pieces), reader.finish()])


@pytest.mark.parametrize("text", INPUTS)
@pytest.mark.parametrize("ascii_only", [True, False])
def test_every_split_gives_the_same_input(text: str, ascii_only: bool) -> None:
    written = " { " + f'"input" : {json.dumps(text, ensure_ascii=ascii_only)} }}'
    assert read([written]) == text
    assert read(list(written)) == text
    for place in range(len(written)):
        assert read([written[:place], written[place:]]) == text


def test_escapes_that_json_writes_otherwise() -> None:
    assert read(['{"input": "\\/\\b\\f\\r\\u00e9\\ud83d\\ude00"}']) == "/\b\f\ré😀"
    assert read(['{"input": "\\ud83dx\\udc00"}']) == "\\ud83dx\\udc00"


@pytest.mark.parametrize("other", ['{"command": "ls"}', "plain text", "[1]", "", '{"input": 5}', "x" * 1000])
def test_what_is_no_such_argument_is_the_input(other: str) -> None:
    assert read([other]) == other
    assert read(list(other)) == other


def test_what_was_cut_short_is_kept() -> None:
    assert read(['{"input": "ab\\n\\u00']) == "ab\n"


def test_arguments_are_read_back() -> None:
    draw = random.Random(1)
    for _ in range(200):
        text = "".join(draw.choices('ab"\\\n\té😀{}:', k=draw.randrange(12)))
        assert read(list(arguments_of(text))) == text


def test_a_long_input_is_looked_at_once() -> None:
    reader = InputReader()
    reader.feed('{"input": "')
    for _ in range(20_000):
        assert reader.feed("abcde\\") + reader.feed("n") == "abcde\n"
        assert len(reader._unread) == 0
