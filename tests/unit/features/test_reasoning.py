"""Reasoning before a grammar: where the grammar begins, how long reasoning may be, and that drafts change nothing."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tessera.arrays import int32
from tessera.features.reasoning import Gate, Spelling
from tessera.features.structured_outputs import ReasonedGrammar, StructuredOutputs
from tessera.request import Request
from tessera.sampling_params import ReasoningParams, SamplingParams
from tests.unit.engine.bytewise import END, NUM_TOKENS
from tests.unit.features.test_structured_outputs import feature_of, save_tokenizer

THINK = ReasoningParams("<think>", "</think>", begun=True)
MAYBE = ReasoningParams("T", "</think>")  # a token begins it


@pytest.fixture
def feature(tmp_path: Path) -> StructuredOutputs:
    save_tokenizer(tmp_path)
    return feature_of(str(tmp_path))


def begin(feature: StructuredOutputs, reasoning: ReasoningParams, regex: str | None = "a[bc]", **params: Any) -> Any:
    asked = None if regex is None else {"regex": regex}
    given = SamplingParams(structured_outputs=asked, reasoning=reasoning, **params)
    state = feature.begin(Request(0, "0", int32([1]), given, 5, 0))
    assert isinstance(state, ReasonedGrammar)
    while not state.ready():
        time.sleep(0.001)
    return state


def allowed(state: Any) -> set[int]:
    bits = np.full(-(-NUM_TOKENS // 32), -1, np.int32)
    state.mask(bits)
    return set(np.flatnonzero(np.unpackbits(bits.view(np.uint8), bitorder="little")[:NUM_TOKENS]).tolist())


def say(state: Any, text: str) -> bool:
    return all(state.accept(token) for token in text.encode())


def test_within_reasoning_anything_goes_but_its_end_of_text(feature: StructuredOutputs) -> None:
    state = begin(feature, THINK)
    assert say(state, "a</thin</think")
    assert allowed(state) == set(range(256))
    assert not state.complete
    assert say(state, ">")
    assert allowed(state) == {ord("a")}
    assert say(state, "ab")
    assert state.complete


def test_a_model_may_reason_or_answer_at_once(feature: StructuredOutputs) -> None:
    at_once, first = begin(feature, MAYBE), begin(feature, MAYBE)
    assert allowed(at_once) == {ord("a"), ord("T")}
    assert say(at_once, "ac")
    assert at_once.complete
    assert say(first, "Tx</think>a")
    assert allowed(first) == {ord("b"), ord("c")}


def test_without_a_token_that_begins_it_there_is_no_reasoning(feature: StructuredOutputs) -> None:
    state = begin(feature, ReasoningParams("<think>", "</think>"))
    assert allowed(state) == {ord("a")}


def test_a_token_that_is_not_allowed_is_refused_after_reasoning(feature: StructuredOutputs) -> None:
    state = begin(feature, THINK)
    assert say(state, "x</think>")
    assert not state.accept(ord("x"))


@pytest.mark.parametrize("regex", ["a[bc]", None])
def test_after_a_budget_the_end_is_demanded(feature: StructuredOutputs, regex: str | None) -> None:
    state = begin(feature, THINK, regex, thinking_token_budget=3)
    assert say(state, "xyz")
    for byte in b"</think>":
        assert allowed(state) == {byte}
        assert state.accept(byte)
    assert allowed(state) == ({ord("a")} if regex else set(range(NUM_TOKENS)))
    assert not state.complete


def test_an_end_that_comes_by_itself_is_not_demanded_again(feature: StructuredOutputs) -> None:
    state = begin(feature, THINK, thinking_token_budget=9)
    assert say(state, "x</think>a")
    assert allowed(state) == {ord("b"), ord("c")}


def test_a_budget_of_nothing_ends_reasoning_at_once(feature: StructuredOutputs) -> None:
    state = begin(feature, THINK, thinking_token_budget=0)
    assert allowed(state) == {ord("<")}


def test_drafts_are_allowed_exactly_if_they_could_be_sampled_and_leave_nothing(feature: StructuredOutputs) -> None:
    """Random texts, asked all at once and token by token."""
    draw = random.Random(2)
    for trial in range(150):
        budget = draw.choice([None, 2, 6])
        kind = draw.choice([THINK, MAYBE])
        state = begin(feature, kind, draw.choice(["a[bc]{2,9}", "[^<]{3,}"]), thinking_token_budget=budget)
        say(state, draw.choice(["", "T", "x"])) if kind is THINK else None
        texts = [b"xx", b"</think>", b"abc", b"T", b"</thi", b"abcbcbc"]
        drafts = int32([*b"".join(draw.choice(texts) for _ in range(3))])
        before = allowed(state)
        count = state.num_allowed(drafts)
        assert allowed(state) == before
        taken = 0
        for token in drafts.tolist():
            if token not in allowed(state):
                break
            assert state.accept(token)
            taken += 1
        assert count == taken, (trial, bytes(drafts.tolist()))
        state.rollback(taken)
        assert allowed(state) == before


def test_many_at_once_have_the_masks_of_each(feature: StructuredOutputs) -> None:
    states = [
        begin(feature, THINK),
        begin(feature, MAYBE),
        begin(feature, THINK),
        begin(feature, THINK, None, thinking_token_budget=1),
    ]
    say(states[2], "</think>")
    say(states[3], "x")
    expected = np.stack([np.full(-(-NUM_TOKENS // 32), -1, np.int32)] * len(states))
    found = expected.copy()
    for state, bits in zip(states, expected, strict=True):
        state.mask(bits)
    feature.mask(states, found)
    assert np.array_equal(found, expected)


def test_the_end_is_spelled_by_the_longest_tokens() -> None:
    spelling = Spelling([b"<", b"/", b"</", b"think", b">", b"t", b"hink>", b"x"])
    assert spelling.spelled(b"</think>") == (2, 3, 4)
    assert spelling.spelled(b"</tz") == ()
    gate = Gate.from_params(ReasoningParams("x", "</think>", begun=True), 0, spelling)
    place = gate.start()
    demanded = []
    while (token := gate.demanded(place)) is not None:
        demanded.append(token)
        place = gate.step(place, token)
    assert demanded == [2, 3, 4]
    assert place.phase == "after"


def test_an_end_within_a_token_ends_it() -> None:
    gate = Gate.from_params(ReasoningParams("x", "end.", begun=True), None, Spelling([b"the en", b"d.\n", b"d."]))
    place = gate.step(gate.step(gate.start(), 0), 1)
    assert place.phase == "after"
    assert END > 1
