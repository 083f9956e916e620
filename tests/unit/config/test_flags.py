"""A flag from its field: what is derived, what is checked, and what each wrong value is answered."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import Any

import pytest

from tessera.config.engine import ENGINE_FLAGS
from tessera.config.flags import check_names, flag, flags_of, given_values, record_of
from tessera.errors import ConfigError


@dataclass(frozen=True)
class Record:
    needed: int = flag(MISSING, "Needed.", name="called")
    share: float = flag(0.5, "Share.", above=0, high=1)
    rest: float = flag(0.25, "Rest.", low=0, below=1, unit="seconds", shown_default="a quarter")
    count: int | None = flag(None, "Count.", low=1, high=9, group="other")
    size: int = flag(2048, "Size.", kind="size", low=1)
    on: bool = flag(True, "On.")
    off: bool = flag(False, "Off.")
    word: str = flag("a", "Word.", choices=("a", "b", "bee"), spellings={"bee": "b"})
    words: tuple[str, ...] = flag((), "Words.")
    again: tuple[str, ...] = flag((), "Again.", multiple=True)
    table: Mapping[str, Any] | None = flag(None, "Table.")
    path: str | None = flag(None, "Path.", metavar="FILE")
    plain: int = 3


FLAGS = {one.name: one for one in flags_of(Record, "usual", "part.")}


def test_what_a_field_says_and_what_follows_from_it():
    assert {name: one.kind for name, one in FLAGS.items()} == {
        "called": "int", "share": "float", "rest": "float", "count": "int", "size": "size", "on": "switch",
        "off": "switch", "word": "choice", "words": "list", "again": "text", "table": "json", "path": "text",
    }  # fmt: skip
    assert (FLAGS["called"].attribute, FLAGS["called"].path, FLAGS["called"].option) == (
        "needed",
        "part.needed",
        "--called",
    )
    assert (FLAGS["share"].group, FLAGS["count"].group) == ("usual", "other")
    assert {one.path for one in flags_of(Record, "usual")} == {""}
    words = {name: one.default_text for name, one in FLAGS.items()}
    assert [words[name] for name in ("called", "share", "rest", "size", "on", "off", "word", "words", "count")] == [
        "", "0.5", "a quarter", "2048", "on", "", "a", "", "",
    ]  # fmt: skip


def test_zero_is_a_default_that_is_shown():
    (seed,) = (one for one in ENGINE_FLAGS if one.name == "seed")
    assert seed.default_text == "0"


def test_a_record_of_what_was_given_and_its_defaults():
    given = {"called": 7, "word": "bee", "again": (), "count": None, "path": Path("a/b"), "size": "2K", "unknown": 1}
    values = given_values(FLAGS.values(), given)
    assert values == {"called": 7, "word": "b", "path": "a/b", "size": 2048}
    record = record_of(Record, FLAGS.values(), values, plain=4)
    assert record == Record(7, word="b", path="a/b", size=2048, plain=4)
    assert record_of(Record, FLAGS.values(), values, needed=1).needed == 1


@pytest.mark.parametrize(
    ("name", "value", "what"),
    [
        ("called", "7", "called must be a whole number."),
        ("called", True, "called must be a whole number."),
        ("called", 7.0, "called must be a whole number."),
        ("share", "x", "share must be a number."),
        ("share", 0, "share must be above 0 and at most 1, got 0."),
        ("share", math.nan, "share must be above 0 and at most 1, got nan."),
        ("rest", 1.0, "rest must be at least 0 and below 1 seconds, got 1."),
        ("count", 10, "count must be from 1 to 9, got 10."),
        ("size", "1.5", "'1.5' is not a whole number."),
        ("size", 0, "size must be at least 1, got 0."),
        ("word", "c" * 50, f"word must be one of a, b, bee, got '{'c' * 40}'."),
    ],
)
def test_a_value_that_does_not_hold_is_one_line_that_names_the_flag(name, value, what):
    with pytest.raises(ConfigError) as caught:
        given_values(FLAGS.values(), {name: value})
    assert (caught.value.message, caught.value.param) == (what, name)


def test_the_command_line_calls_a_flag_by_its_option():
    with pytest.raises(ConfigError, match="--count must be from 1 to 9, got 0"):
        given_values(FLAGS.values(), {"count": 0}, as_options=True)


def test_a_keyword_that_is_no_flag():
    check_names("f", {"share": 1}, FLAGS.values())
    with pytest.raises(TypeError, match=r"f\(\) got an unexpected keyword argument 'shard'; did you mean 'share'\?"):
        check_names("f", {"shard": 1}, FLAGS.values())
    with pytest.raises(TypeError, match="argument 'zzzzzz'$"):
        check_names("f", {"zzzzzz": 1}, FLAGS.values())


def test_a_field_that_describes_its_flag_wrongly_is_found_at_once():
    @dataclass(frozen=True)
    class Wrong:
        size: int = flag(1, "Size.", lowest=1)

    with pytest.raises(TypeError, match="lowest"):
        flags_of(Wrong, "usual")
