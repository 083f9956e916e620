"""BucketedShapes: every launch fits its key, and the keys are those that are listed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.platform import BucketedShapes, LaunchKey, PlatformError, StepRules, StepShape, doubled
from tessera.platform.shapes import pieces_key
from tessera.testing.conformance.launches import problems_of

POLICIES = {
    "rectangles": BucketedShapes((1, 3, 8), (16, 40), prompt_rows=2, blocks=(2, 9), max_decode_tokens=4),
    "one by one": BucketedShapes((4,), (8, 40), blocks=(9,)),
    "packed": BucketedShapes((1, 6), (24, 64), prompt_rows=5, packed=True, blocks=(3, 9), max_decode_tokens=2),
    "exact prompts": BucketedShapes((2, 5), blocks=(9,), max_decode_tokens=3),
    "exact rows": BucketedShapes((2, 5), blocks=(9,), mixed_tokens=(16, 64), max_decode_tokens=3),
}


def step(decode: list[int], prompts: list[int], blocks: list[int]) -> StepShape:
    lengths = np.array([*decode, *prompts], np.int32)
    used = np.array([blocks[i % len(blocks)] for i in range(len(lengths))], np.int32)
    return StepShape(len(decode), lengths, lengths + 5, used, frozenset(("some",)))


@pytest.mark.parametrize("name", POLICIES)
@given(
    rows=st.integers(0, 20),
    prompts=st.lists(st.integers(1, 40), max_size=9),
    blocks=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    drafts=st.booleans(),
)
def test_launches_fit(name: str, rows: int, prompts: list[int], blocks: list[int], drafts: bool) -> None:
    policy = POLICIES[name]
    if rows + len(prompts) == 0:
        return
    width = policy.max_decode_tokens if drafts and not prompts else 1
    made = step([1 + i % width for i in range(rows)], prompts, blocks)
    static = bool(policy.prompt_tokens)
    assert list(problems_of(made, policy.launches(made), policy.keys(), static)) == []


def test_a_launch_has_the_smallest_shape_that_holds_it() -> None:
    policy = POLICIES["rectangles"]
    launches = policy.launches(step([1] * 10, [3, 17, 40], [1, 2]))
    assert [(one.key.kind, one.key.rows, one.key.width, one.key.blocks) for one in launches] == [
        ("decode", 8, 1, 2), ("decode", 3, 1, 2), ("prefill", 2, 40, 2), ("prefill", 2, 40, 2),
    ]  # fmt: skip
    assert [(one.first, one.last, one.stride) for one in launches] == [
        (0, 8, 1),
        (8, 10, 1),
        (10, 12, 40),
        (12, 13, 40),
    ]


def test_packed_rows_share_launches() -> None:
    launches = POLICIES["packed"].launches(step([1] * 3, [20, 39, 30], [9]))
    assert [(one.first, one.last, one.key.tokens) for one in launches] == [(0, 5, 64), (5, 6, 64)]
    assert {one.key.kind for one in launches} == {"mixed"}
    assert launches[0].key.bits == {"some"}


def test_prompts_of_exact_shape_share_a_launch_with_decode_rows() -> None:
    (launch,) = POLICIES["exact prompts"].launches(step([1] * 3, [20, 39], [4]))
    assert launch.key == LaunchKey("mixed", 5, 39, 4, 62, frozenset(("some",)))


def test_tokens_are_padded_behind_exact_rows() -> None:
    policy = POLICIES["exact rows"]
    keys = [policy.launches(step([1] * 3, [20, last], [4]))[0].key for last in (39, 42)]
    assert keys == [
        LaunchKey("mixed", 5, last, 4, tokens, frozenset(("some",))) for last, tokens in ((39, 64), (42, 65))
    ]
    assert policy.keys()[-2:] == [pieces_key(16), pieces_key(64)]
    assert pieces_key(64).samples_all
    assert policy.rules() == StepRules()


def test_rules_keep_prompts_within_the_largest_launch() -> None:
    assert replace(POLICIES["rectangles"], chunk_multiple=8).rules() == StepRules(
        mix_prefill_decode=False, chunk_multiple=8, max_tokens_per_request=40
    )
    assert POLICIES["packed"].rules() == StepRules(max_tokens_per_request=64)
    assert POLICIES["exact prompts"].rules() == StepRules()


@pytest.mark.parametrize(
    ("least", "most", "sizes"),
    [(1, 1, (1,)), (1, 6, (1, 2, 4, 6)), (4, 16, (4, 8, 16)), (128, 100, (100,)), (128, 300, (128, 256, 300))],
)
def test_doubled_sizes_end_with_the_most(least: int, most: int, sizes: tuple[int, ...]) -> None:
    assert doubled(least, most) == sizes


@given(st.integers(1, 300), st.integers(1, 300))
def test_a_launch_of_at_least_the_least_is_padded_to_less_than_twice_its_size(least: int, most: int) -> None:
    sizes = doubled(least, most)
    assert list(sizes) == sorted(set(sizes))
    for needed in range(1, most + 1):
        padded = next(size for size in sizes if size >= needed)
        assert padded < 2 * needed if needed >= least else padded == sizes[0]


def test_tables_that_are_too_narrow_are_told() -> None:
    policy = BucketedShapes((4,), (8, 40), blocks=(2, 4))
    with pytest.raises(PlatformError, match="^a launch needs a bucket of 5, but those of .* end at 4; "):
        policy.launches(step([1], [], [5]))
