"""Images are encoded in parts that take as long as a chunk of a prompt does, once it is known how long both take."""

from __future__ import annotations

import random

import pytest

from tessera.features.encoding_cost import LARGEST, LEAST_TOKENS, SHORTEST, EncodingCost
from tessera.features.media import EncoderCache
from tests.unit.media.test_encoder_cache import FULL, Request, image, parts, step


def learned(each_step: int, tokens: int) -> EncodingCost:
    """Of features that take as long as so many tokens."""
    cost = EncodingCost(each_step)
    cost.learn(0.5, 500, None, 0)
    cost.learn(0.1 * tokens, 0, "image", 100)
    return cost


def test_a_feature_is_a_token_until_both_were_measured() -> None:
    cost = EncodingCost(512)
    assert cost.tokens("image") == 1
    cost.learn(9.0, 0, "image", 500)
    assert cost.tokens("image") == 1
    cost.learn(1.0, 500, None, 0)
    assert cost.tokens("image") == 9
    assert cost.tokens("audio") == 1
    cost.learn(3.0, 1000, "audio", 200)  # of which the tokens took 2
    assert cost.tokens("audio") == round(1 / 200 / 0.002)


def test_steps_that_say_nothing_are_not_learned_from() -> None:
    cost = learned(512, 4)
    cost.learn(SHORTEST / 2, 500, None, 0)
    cost.learn(0.3, LEAST_TOKENS - 1, None, 0)  # as one that decodes
    cost.learn(1.0, 0, None, 10)  # of an image and a sound
    assert cost.tokens("image") == 4


def test_a_slow_step_is_believed_little_and_a_fast_one_at_once() -> None:
    cost = learned(512, 4)
    cost.learn(40.0, 0, "image", 100)
    assert cost.tokens("image") == 4
    for _ in range(40):
        cost.learn(2.0, 0, "image", 100)
    assert cost.tokens("image") == 20
    cost.learn(0.3, 0, "image", 100)
    assert cost.tokens("image") == 3


@pytest.mark.parametrize("each_step", [1, 7, 512])
def test_a_step_has_room_for_some_features_however_long_they_take(each_step: int) -> None:
    assert learned(each_step, 10_000).tokens("image") == max(each_step // LARGEST, 1)


def test_parts_are_as_much_work_as_a_chunk() -> None:
    cache = EncoderCache(100, 64)
    cache._cost = learned(64, 5)
    request, told = Request(0, image("a", 4, 30)), []
    for _ in range(5):
        granted, media = step(cache, (request, 40))
        told.append((granted[0], parts(media)))
        request.num_computed_tokens += 0 if granted == [FULL] else granted[0]
    assert told == [
        (4, [(0, 12, False)]),
        (FULL, [(0, 24, False)]),
        (34, [(0, 30, False)]),
        (40, []),
        (40, []),
    ]


def test_it_is_learned_from_the_steps_themselves() -> None:
    cache = EncoderCache(1000, 256)
    step(cache, (Request(0), 200))
    step(cache, (Request(1, image("a", 0, 400)), 400))
    cache.retired(0.2, 200)
    step(cache, (Request(1, image("a", 0, 400)), 400))
    cache.retired(2.56, 0)  # the step that encoded 256
    _, media = step(cache, (Request(2, image("b", 0, 100)), 100))
    assert parts(media) == [(1, 25, False)]


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("options", [{}, {"whole": True}])
def test_no_step_does_more_than_it_has_room_for(seed: int, options: dict[str, bool]) -> None:
    rng = random.Random(seed)
    each_step = rng.choice([32, 40, 100])
    cost = rng.randint(1, each_step // LARGEST)
    cache = EncoderCache(120, each_step, **options)
    cache._cost = learned(each_step, cost)
    running = []
    for key in range(4):
        size, start = rng.randint(1, 30), rng.randint(0, 20)
        running.append(Request(key, image(f"{key}", start, size), num_prompt_tokens=start + size + rng.randint(1, 20)))
    done: dict[int, int] = {}
    for _ in range(400):
        asked = [(one, one.num_prompt_tokens - one.num_computed_tokens) for one in running]
        granted, media = step(cache, *asked)
        computed = 0
        for (request, _), tokens in zip(asked, granted, strict=True):
            if tokens != FULL:
                computed += tokens
                request.num_computed_tokens += tokens
        encoded = 0
        for number, now, _ in parts(media):
            encoded += now - done.get(number, 0)
            done[number] = now
        assert computed + encoded * cost <= each_step
        running = [one for one in running if one.num_computed_tokens < one.num_prompt_tokens]
        if not running:
            return
    raise AssertionError(f"still waiting: {running}")
