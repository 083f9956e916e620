from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tessera.text import StopChecker, StopStrings


def checker_of(stops: list[str], *, include: bool = False) -> StopChecker:
    return StopChecker(StopStrings(stops), include)


class PlainChecker:
    """The definition: looks for every stop string in all the text that is held back, at every piece."""

    def __init__(self, stops: list[str], *, include: bool) -> None:
        self._stops, self._include, self._held = stops, include, ""

    def feed(self, text: str) -> tuple[str, str | None]:
        self._held += text
        places = range(len(self._held))
        unfinished = [at for at in places if any(stop != self._held[at:] for stop in self._begun(self._held[at:]))]
        return self._upto(min(unfinished, default=len(self._held)))

    def flush(self) -> tuple[str, str | None]:
        return self._upto(len(self._held))

    def _begun(self, end: str) -> list[str]:
        return [stop for stop in self._stops if stop.startswith(end)]

    def _upto(self, place: int) -> tuple[str, str | None]:
        """place: where the first match that may still become longer, or one at all, begins."""
        before, stop = oracle(self._held, self._stops, include=False)
        if stop is not None and len(before) < place:
            return oracle(self._held, self._stops, self._include)
        emit, self._held = self._held[:place], self._held[place:]
        return emit, None


def oracle(text: str, stops: list[str], include: bool) -> tuple[str, str | None]:
    """The whole text at once: earliest match, then the longest."""
    for start in range(len(text)):
        here = [stop for stop in stops if text.startswith(stop, start)]
        if here:
            stop = max(here, key=len)
            return text[: start + len(stop) if include else start], stop
    return text, None


def run(checker: StopChecker, pieces: list[str], armed: bool = True) -> tuple[list[str], str | None]:
    shown = []
    for piece in pieces:
        emit, stopped = checker.feed(piece, armed)
        shown.append(emit)
        if stopped is not None:
            return shown, stopped
    emit, stopped = checker.flush()
    return [*shown, emit], stopped


@settings(max_examples=400, deadline=None)
@given(
    pieces=st.lists(st.text(alphabet="ab", max_size=4), max_size=12),
    stops=st.lists(st.text(alphabet="ab", min_size=1, max_size=7), min_size=1, max_size=3),
    include=st.booleans(),
)
def test_equals_a_search_of_the_whole_text(pieces: list[str], stops: list[str], include: bool) -> None:
    shown, stopped = run(checker_of(stops, include=include), pieces)
    assert ("".join(shown), stopped) == oracle("".join(pieces), stops, include)


@settings(max_examples=200, deadline=None)
@given(text=st.text(alphabet="ab", max_size=30), stops=st.lists(st.text("abc", min_size=1, max_size=5), min_size=1))
def test_holds_back_only_what_could_begin_a_stop(text: str, stops: list[str]) -> None:
    checker = checker_of(stops)
    shown = ""
    for position, char in enumerate(text, start=1):
        emit, stopped = checker.feed(char)
        shown += emit
        if stopped is not None:
            return
        held = text[len(shown) : position]
        could_begin = [end for end in range(position) if any(s.startswith(text[end:position]) for s in stops)]
        assert len(held) <= position - min(could_begin, default=position)


@settings(max_examples=600, deadline=None)
@given(
    pieces=st.lists(st.text(alphabet="abc", max_size=5), max_size=14),
    stops=st.lists(st.text(alphabet="abc", min_size=1, max_size=8), min_size=1, max_size=8),
    include=st.booleans(),
)
def test_gives_out_at_each_piece_what_the_definition_says(pieces: list[str], stops: list[str], include: bool) -> None:
    plain, checker = PlainChecker(stops, include=include), checker_of(stops, include=include)
    for piece in pieces:
        given_out = checker.feed(piece)
        assert given_out == plain.feed(piece)
        if given_out[1] is not None:
            return
    assert checker.flush() == plain.flush()


def test_work_grows_with_the_text_and_not_with_the_number_of_stops() -> None:
    begin, text = "ab" * 300, "ab" * 400
    one, many = ([f"{begin}{number:02d}" for number in range(count)] for count in (1, 64))
    assert lines_run(many, text) <= 1.1 * lines_run(one, text)


def lines_run(stops: list[str], text: str) -> int:
    """How many lines of Python run while a text is searched, two characters at a time."""
    checker, count = checker_of(stops), 0

    def line(_frame: FrameType, event: str, _arg: object) -> Callable[..., Any]:
        nonlocal count
        count += event == "line"
        return line

    before = sys.gettrace()
    sys.settrace(line)
    try:
        for start in range(0, len(text), 2):
            checker.feed(text[start : start + 2])
    finally:
        sys.settrace(before)
    return count


def test_stop_across_pieces_is_cut_or_kept() -> None:
    assert run(checker_of(["<end>"]), ["Hello <", "en", "d> more"]) == (["Hello ", "", ""], "<end>")
    assert run(checker_of(["<end>"], include=True), ["Hi<e", "nd>x"]) == (["Hi", "<end>"], "<end>")


def test_stop_that_begins_like_its_own_middle() -> None:
    assert run(checker_of(["aab"]), ["aa", "ab"]) == (["", "a"], "aab")
    assert run(checker_of(["aaba"]), ["xaaa", "b", "a"]) == (["xa", "", ""], "aaba")


def test_false_start_is_given_out_at_once() -> None:
    checker = checker_of(["abcd"])
    assert checker.feed("xxabc") == ("xx", None)
    assert checker.feed("e") == ("abce", None)
    assert checker.feed("aab") == ("a", None)
    assert checker.flush() == ("ab", None)


def test_longest_wins_where_several_begin() -> None:
    assert run(checker_of(["\n", "\n\n"]), ["a\n", "\n", "b"]) == (["a", ""], "\n\n")
    # The longer one does not come: the shorter has ended the text all the same.
    assert run(checker_of(["\n", "\n\n"]), ["a\n", "b"]) == (["a", ""], "\n")
    assert run(checker_of(["\n", "\n\n"]), ["a\n"]) == (["a", ""], "\n")


def test_earlier_match_wins_over_one_that_is_complete_before_it() -> None:
    checker = checker_of(["abcd", "bc"])
    assert checker.feed("abc") == ("", None)
    assert checker.feed("d") == ("", "abcd")
    assert run(checker_of(["abcd", "bc"]), ["abc", "x"]) == (["", "a"], "bc")


def test_no_match_begins_in_text_before_min_tokens() -> None:
    checker = checker_of(["stop"])
    assert checker.feed("stop st", armed=False) == ("stop st", None)
    assert checker.feed("op, ") == ("op, ", None)
    assert checker.feed("stop") == ("", "stop")


def test_long_repetitive_stop_strings_stay_cheap() -> None:
    stop = "ab" * 2000 + "c"
    checker = checker_of([stop])
    text = "ab" * 5000
    shown = "".join(checker.feed(text[start : start + 100])[0] for start in range(0, len(text), 100))
    assert len(text) - len(shown) == 4000
    assert checker.feed("c") == (text[len(shown) : -4000], stop)


def test_empty_stop_string_is_a_bug_of_the_caller() -> None:
    with pytest.raises(AssertionError):
        checker_of([""])
