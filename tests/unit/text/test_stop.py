from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tessera.text import StopChecker


def oracle(text: str, stops: list[str], include: bool) -> tuple[str, str | None]:
    """The whole text at once: earliest match, then the longest."""
    for start in range(len(text)):
        here = [stop for stop in stops if text.startswith(stop, start)]
        if here:
            stop = max(here, key=len)
            return text[: start + len(stop) if include else start], stop
    return text, None


def run(checker: StopChecker, pieces: list[str], armed: bool = True) -> tuple[list[str], str | None]:
    logits_indices = []
    for piece in pieces:
        emit, stopped = checker.feed(piece, armed)
        logits_indices.append(emit)
        if stopped is not None:
            return logits_indices, stopped
    emit, stopped = checker.flush()
    return [*logits_indices, emit], stopped


@settings(max_examples=400, deadline=None)
@given(
    pieces=st.lists(st.text(alphabet="ab", max_size=4), max_size=12),
    stops=st.lists(st.text(alphabet="ab", min_size=1, max_size=7), min_size=1, max_size=3),
    include=st.booleans(),
)
def test_equals_a_search_of_the_whole_text(pieces: list[str], stops: list[str], include: bool) -> None:
    logits_indices, stopped = run(StopChecker(stops, include), pieces)
    assert ("".join(logits_indices), stopped) == oracle("".join(pieces), stops, include)


@settings(max_examples=200, deadline=None)
@given(text=st.text(alphabet="ab", max_size=30), stops=st.lists(st.text("abc", min_size=1, max_size=5), min_size=1))
def test_holds_back_only_what_could_begin_a_stop(text: str, stops: list[str]) -> None:
    checker = StopChecker(stops)
    logits_indices = ""
    for position, char in enumerate(text, start=1):
        emit, stopped = checker.feed(char)
        logits_indices += emit
        if stopped is not None:
            return
        held = text[len(logits_indices) : position]
        could_begin = [end for end in range(position) if any(s.startswith(text[end:position]) for s in stops)]
        assert len(held) <= position - min(could_begin, default=position)


def test_stop_across_pieces_is_cut_or_kept() -> None:
    assert run(StopChecker(["<end>"]), ["Hello <", "en", "d> more"]) == (["Hello ", "", ""], "<end>")
    assert run(StopChecker(["<end>"], include_in_output=True), ["Hi<e", "nd>x"]) == (["Hi", "<end>"], "<end>")


def test_stop_that_begins_like_its_own_middle() -> None:
    assert run(StopChecker(["aab"]), ["aa", "ab"]) == (["", "a"], "aab")
    assert run(StopChecker(["aaba"]), ["xaaa", "b", "a"]) == (["xa", "", ""], "aaba")


def test_false_start_is_given_out_at_once() -> None:
    checker = StopChecker(["abcd"])
    assert checker.feed("xxabc") == ("xx", None)
    assert checker.feed("e") == ("abce", None)
    assert checker.feed("aab") == ("a", None)
    assert checker.flush() == ("ab", None)


def test_longest_wins_where_several_begin() -> None:
    assert run(StopChecker(["\n", "\n\n"]), ["a\n", "\n", "b"]) == (["a", ""], "\n\n")
    # The longer one does not come: the shorter has ended the text all the same.
    assert run(StopChecker(["\n", "\n\n"]), ["a\n", "b"]) == (["a", ""], "\n")
    assert run(StopChecker(["\n", "\n\n"]), ["a\n"]) == (["a", ""], "\n")


def test_earlier_match_wins_over_one_that_is_complete_before_it() -> None:
    checker = StopChecker(["abcd", "bc"])
    assert checker.feed("abc") == ("", None)
    assert checker.feed("d") == ("", "abcd")
    assert run(StopChecker(["abcd", "bc"]), ["abc", "x"]) == (["", "a"], "bc")


def test_no_match_begins_in_text_before_min_tokens() -> None:
    checker = StopChecker(["stop"])
    assert checker.feed("stop st", armed=False) == ("stop st", None)
    assert checker.feed("op, ") == ("op, ", None)
    assert checker.feed("stop") == ("", "stop")


def test_long_repetitive_stop_strings_stay_cheap() -> None:
    stop = "ab" * 2000 + "c"
    checker = StopChecker([stop])
    text = "ab" * 5000
    logits_indices = "".join(checker.feed(text[start : start + 100])[0] for start in range(0, len(text), 100))
    assert len(text) - len(logits_indices) == 4000
    assert checker.feed("c") == (text[len(logits_indices) : -4000], stop)


def test_empty_stop_string_is_a_bug_of_the_caller() -> None:
    with pytest.raises(AssertionError):
        StopChecker([""])
