"""Fields that together forbid every token end a request with an error that names them; no other token is doubted."""

from __future__ import annotations

from typing import Any

import pytest

from tessera.arrays import int32
from tessera.errors import RequestError
from tessera.sampling_params import SamplingParams
from tessera.scheduler.restrictions import Restrictions, check_first
from tests.unit.scheduler.world import World, plan

EOS = (0, 9)
VOCAB = 10

FORBIDDEN: list[tuple[dict[str, Any], str]] = [
    ({"allowed_token_ids": [5], "bad_words_ids": [[5]]}, "allowed_token_ids and bad_words together"),
    ({"allowed_token_ids": [9, 0], "min_tokens": 2}, "allowed_token_ids and min_tokens together"),
    (
        {"allowed_token_ids": [5, 6, 9], "bad_words_ids": [[6]], "stop_token_ids": [5], "min_tokens": 1},
        "allowed_token_ids, bad_words and min_tokens together",
    ),
    ({"bad_words_ids": [[token] for token in range(VOCAB)]}, "bad_words"),
    (
        {"bad_words_ids": [[token] for token in range(1, 9)], "min_tokens": 3},
        "bad_words and min_tokens together",
    ),
]


@pytest.mark.parametrize(("fields", "said"), FORBIDDEN)
def test_what_forbids_every_first_token_is_refused_before_it_runs(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(RequestError) as refused:
        check_first(SamplingParams(**fields), EOS, VOCAB)
    assert refused.value.message == f"No token is left to draw by {said}; change what they ask for."
    assert (refused.value.param, refused.value.code) == (said.replace(",", " ").split()[0], "nothing_allowed")


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"allowed_token_ids": [9]},
        {"allowed_token_ids": [9, 5], "min_tokens": 2},
        {"allowed_token_ids": [5], "stop_token_ids": [5]},
        {"allowed_token_ids": [5], "bad_words_ids": [[5, 5], [4, 5]]},
        {"allowed_token_ids": [5], "logit_bias": {5: -100.0}},
        {"bad_words_ids": [[token] for token in range(VOCAB - 1)]},
    ],
)
def test_what_leaves_one_is_not(fields: dict[str, Any]) -> None:
    check_first(SamplingParams(**fields), EOS, VOCAB)


@pytest.mark.parametrize(
    ("fields", "answers"),
    [
        ({"allowed_token_ids": [5]}, {(): True, (5,): True}),
        ({"bad_words_ids": [[3], [0]]}, {(): True, (0, 1): True}),
        ({"bad_words_ids": [[5, 0], [1, 2, 0]]}, {(): False, (5,): True, (5, 1): False, (1, 2): True, (2,): False}),
        ({"min_tokens": 2}, {(): True, (5,): True, (5, 5): False}),
        ({"allowed_token_ids": [0, 5], "bad_words_ids": [[5, 0]]}, {(): False, (0, 5): True}),
    ],
)
def test_when_the_first_token_of_the_vocabulary_is_forbidden(
    fields: dict[str, Any], answers: dict[tuple[int, ...], bool]
) -> None:
    restrictions = Restrictions.from_params(SamplingParams(**fields), EOS)
    assert restrictions is not None
    assert {answer: restrictions.forbid(int32(answer)) for answer in answers} == answers


@pytest.mark.parametrize(
    "fields",
    [{}, {"logit_bias": {0: -100.0}}, {"allowed_token_ids": [5, 0]}, {"bad_words_ids": [[0, 5]]}, {"ignore_eos": True}],
)
def test_a_request_that_never_forbids_it_is_not_looked_at(fields: dict[str, Any]) -> None:
    assert Restrictions.from_params(SamplingParams(**fields), EOS) is None


# ---- in the scheduler ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("drafts", [0, 3])
@pytest.mark.parametrize("depth", [1, 3])
def test_the_request_ends_where_nothing_was_left_and_others_go_on(
    depth: int, drafts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The device draws what the seed says."""
    monkeypatch.setattr("tests.unit.scheduler.fake_device.next_token", lambda _hash, seed: seed)
    world = World(plan(), depth=depth, max_num_seqs=8, eos=(9,), drafts=drafts)
    ended = {
        world.add([1, 2], 8, seed=0, allowed_token_ids=[5]): ("allowed_token_ids", []),
        world.add([1, 2], 8, seed=0, bad_words_ids=[[0, 0, 0]]): ("bad_words", [0, 0]),
        world.add([1, 2], 8, seed=0, allowed_token_ids=[0], bad_words_ids=[[0, 0]]): (
            "allowed_token_ids and bad_words together",
            [0],
        ),
        world.add([1, 2], 8, seed=0, stop_token_ids=[0], min_tokens=3): ("min_tokens", []),
    }
    going = {
        world.add([1, 2], 8, seed=0): 0,
        world.add([1, 2], 8, seed=0, allowed_token_ids=[5, 0]): 0,
        world.add([1, 2], 8, seed=5, allowed_token_ids=[5], bad_words_ids=[[0]]): 5,
    }
    world.run()
    for key, (said, answer) in ended.items():
        finished = world.finished[key]
        assert (finished.reason, world.answers[key]) == ("error", answer)
        assert finished.message == f"No token is left to draw by {said}; change what they ask for."
        assert (finished.param, finished.failure) == (said.split()[0], "nothing_allowed")
    for key, token in going.items():
        assert (world.finished[key].reason, world.answers[key]) == ("length", [token] * 8)
