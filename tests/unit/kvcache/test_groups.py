"""From layers and bytes to groups and blocks."""

from __future__ import annotations

import pytest

from tessera.config import CacheConfig, EngineConfig, ModelConfig, SchedulerConfig
from tessera.config.engine import SpeculativeConfig
from tessera.errors import ConfigError, MemoryBudgetError
from tessera.kvcache import solve
from tessera.platform import (
    CacheNeeds,
    CrossSpec,
    FullAttentionSpec,
    KVLayout,
    LoadedModel,
    ModelFacts,
    Plane,
    SlidingWindowSpec,
    StateSpec,
)


def paged(layer, sizes=(16,), *, multiple=True, spec=None, align=1, index="int32", per_token=8):
    spec = spec or FullAttentionSpec(1, 4, "float32")

    def layout(block_size):
        return KVLayout((Plane("k", "int8", (("token", max(block_size, 1)), ("dim", per_token))),))

    return CacheNeeds(layer, spec, sizes, multiple, index, align, layout)


def window(layer, size, sizes=(16,)):
    return paged(layer, sizes, spec=SlidingWindowSpec(1, 4, "float32", window=size))


def state(layer, nbytes):
    return paged(layer, (), spec=StateSpec((("s", (nbytes,)),), "int8"), per_token=nbytes)


def crossed(layer, length):
    return paged(layer, spec=CrossSpec(1, 4, "float32", length=length))


def solved(needs, nbytes, *, max_model_len=64, block_size=None, num_rows=4, budget=2048, caching=True, drafts=0):
    facts = ModelFacts("a", 10, 4, len(needs), 64, "float32", ())
    model = ModelConfig("", "", {}, 10, max_model_len)
    cache = CacheConfig(block_size=block_size, prefix_caching=caching)
    speculative = SpeculativeConfig("ngram", drafts) if drafts else None
    scheduler = SchedulerConfig(4, budget, speculative=speculative)
    config = EngineConfig(model, "", cache=cache, scheduler=scheduler)
    (plan,) = solve([LoadedModel(facts, tuple(needs), 0, nbytes)], config, num_rows)
    return plan


def test_equal_layers_are_one_group():
    plan = solved([paged(0), paged(1)], 10 * 256 + 5)
    (group,) = plan.groups
    assert (group.layers, group.kind, group.block_size, group.block_bytes) == ((0, 1), "paged", 16, 256)
    assert group.num_blocks == 10, "null among them"
    assert (plan.num_tokens, plan.num_rows, plan.max_model_len) == (144, 4, 64)


def test_groups_that_grow_have_room_for_the_same_tokens():
    layers = [paged(0, (16,), multiple=False), window(1, 8, (24,)), window(2, 9, (24,))]
    plan = solved(layers, 20_000, num_rows=64)
    assert [(group.kind, group.block_size, group.window) for group in plan.groups] == [
        ("paged", 16, None), ("window", 24, 8), ("window", 24, 9),
    ]  # fmt: skip
    tokens = {(group.num_blocks - 1) * group.block_size for group in plan.groups}
    assert len(tokens) == 1
    used = sum(group.num_blocks * group.block_bytes for group in plan.groups)
    assert used <= 20_000 < used + 48 * 8 * 3, "nothing that would hold one more unit is left"


def test_windows_beside_full_layers_get_what_their_rows_can_hold():
    layers = [paged(0), window(1, 8)]
    few, many = solved(layers, 100_000, num_rows=4), solved(layers, 100_000, num_rows=1000)
    assert [group.num_blocks - 1 for group in few.groups] == [763, 4 * 4], "64 tokens each, the window and a step"
    assert [group.num_blocks - 1 for group in many.groups] == [389, 389]
    assert few.num_tokens == 763 * 16


def test_windows_make_room_for_a_long_request():
    layers = [paged(0), window(1, 8)]
    tokens = 16 * 300
    plan = solved(layers, 500 * 128, max_model_len=tokens, num_rows=64, budget=32)
    full, narrow = plan.groups
    assert full.num_blocks - 1 >= 300, "an even share would be 249"
    assert narrow.num_blocks - 1 >= narrow.most_held(tokens, 64)
    assert full.num_blocks + narrow.num_blocks <= 500
    with pytest.raises(MemoryBudgetError, match="--max-model-len"):
        solved(layers, 300 * 128, max_model_len=tokens, num_rows=64, budget=32)


def test_windows_alone_have_all_the_memory_and_room_for_any_length():
    (group,) = solved([window(0, 8)], 100 * 128, max_model_len=10_000, budget=32).groups
    assert group.num_blocks == 100


def test_states_get_a_slot_a_row_first():
    plan = solved([state(0, 100), paged(1)], 5 * 100 + 6 * 128, num_rows=4)
    kept, grown = plan.groups
    assert (kept.kind, kept.block_size, kept.num_blocks, kept.block_bytes) == ("state", 0, 5, 100)
    assert grown.num_blocks == 6
    assert plan.num_requests(16) == 4, "not more than rows, though five blocks are left"


def test_states_behind_drafts_have_slots_of_their_own():
    layers = [state(0, 100), paged(1)]
    kept, grown = solved(layers, 13 * 100 + 6 * 128, num_rows=4, drafts=2).groups
    assert (kept.num_blocks, kept.states, kept.blocks_of(0), grown.num_blocks) == (4 * 3 + 1, 3, 3, 6)
    kept, _ = solved(layers, 13 * 100 + 128 + 8 * 200, num_rows=4, drafts=2).groups
    assert kept.num_blocks == 4 * 3 + 1 + 2, "copies beside them, one for each row at most"


@pytest.mark.parametrize(
    ("left", "caching", "copies"),
    [(8 * 200, True, 2), (8 * 500, True, 4), (8 * 500, False, 0), (8 * 100 - 1, True, 0)],
    ids=["an eighth", "as many as rows", "no prefix caching", "too few bytes"],
)
def test_copies_of_states_get_an_eighth_of_the_rest(left, caching, copies):
    layers = [state(0, 60), paged(1), state(2, 40)]
    kept, grown = solved(layers, 5 * 100 + 128 + left, num_rows=4, caching=caching).groups
    assert kept.num_blocks == 5 + copies
    assert grown.num_blocks == 1 + (left - copies * 100) // 128


def test_copies_of_states_take_no_room_that_a_long_request_needs():
    kept, grown = solved([state(0, 100), paged(1)], 5 * 100 + 9 * 128, num_rows=4, max_model_len=8 * 16).groups
    assert (kept.num_blocks, grown.num_blocks) == (5, 9)


def test_only_states():
    (group,) = solved([state(0, 100)], 500).groups
    assert group.num_blocks == 5
    with pytest.raises(MemoryBudgetError, match="--kv-cache-memory-bytes"):
        solved([state(0, 100)], 499)


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([(32, 16), (16,)], [32, 32]),
        ([(16, 32), (32,)], [32, 32]),
        ([(16,), (24,)], [48, 48]),
    ],
)
def test_the_first_preferred_size_that_suits_all_is_taken(sizes, expected):
    plan = solved([paged(layer, own) for layer, own in enumerate(sizes)], 100_000)
    assert [group.block_size for group in plan.groups for _ in group.layers] == expected


def test_layers_with_no_size_in_common_have_their_own():
    plan = solved([paged(0, (16,), multiple=False), paged(1, (24,), multiple=False)], 100_000)
    assert [group.block_size for group in plan.groups] == [16, 24]


def test_a_given_size_is_taken_or_refused():
    assert solved([paged(0)], 100_000, block_size=48).groups[0].block_size == 48
    with pytest.raises(
        ConfigError, match=r"--block-size 24 is not supported by layer 1: it takes 16, 32 or a multiple\."
    ):
        solved([paged(0, (8,)), paged(1, (16, 32))], 100_000, block_size=24)
    with pytest.raises(ConfigError, match=r"takes 16\."):
        solved([paged(0, multiple=False)], 100_000, block_size=32)


def test_layers_stand_at_aligned_addresses():
    plan = solved([paged(0, per_token=1), paged(1, per_token=1, align=64)], 100_000)
    assert plan.groups[0].block_bytes == 128


def test_slots_fit_the_index_type():
    plan = solved([paged(0)], 2**36)
    assert plan.groups[0].num_blocks * 16 <= 2**31


def test_too_little_memory_says_what_fits():
    with pytest.raises(
        MemoryBudgetError, match="room for 48 tokens, but one request may have 64; lower --max-model-len to 48"
    ):
        solved([paged(0)], 4 * 128)
    with pytest.raises(MemoryBudgetError, match="no room for a single block"):
        solved([paged(0)], 2 * 128 - 1)


# ---- pipeline stages -------------------------------------------------------------------------------------------------


def solved_on(stages, *, max_model_len=64, block_size=None):
    """stages: needs and bytes of each."""
    facts = ModelFacts("a", 10, 4, 4, 64, "float32", ())
    model = ModelConfig("", "", {}, 10, max_model_len)
    config = EngineConfig(model, "", cache=CacheConfig(block_size=block_size), scheduler=SchedulerConfig(4, 2048))
    return solve([LoadedModel(facts, tuple(needs), 0, nbytes) for needs, nbytes in stages], config, 4)


def shared(plan):
    return [(group.kind, group.block_size, group.num_blocks, group.window) for group in plan.groups]


def test_a_stage_with_less_room_limits_the_others():
    alone = [solved(needs, nbytes) for needs, nbytes in (([paged(0), paged(1)], 5000), ([paged(0)], 1500))]
    first, last = solved_on([([paged(0), paged(1)], 5000), ([paged(0)], 1500)])
    assert [plan.groups[0].num_blocks for plan in alone] == [19, 11]
    assert shared(first) == shared(last) == [("paged", 16, 11, None)]
    assert [(group.layers, group.block_bytes) for plan in (first, last) for group in plan.groups] == [
        ((0, 1), 256), ((0,), 128),
    ]  # fmt: skip


def test_a_group_without_layers_on_a_stage_takes_nothing_there():
    first, last = solved_on([([paged(0), state(1, 40)], 9000), ([window(0, 8)], 9000)])
    assert [plan.num_rows for plan in (first, last)] == [4, 4]
    assert shared(first) == shared(last)
    assert [group.kind for group in first.groups] == ["paged", "state", "window"]
    assert [group.layers for group in first.groups] == [(0,), (1,), ()]
    assert [group.layers for group in last.groups] == [(), (), (0,)]
    assert first.groups[2].block_bytes == last.groups[0].block_bytes == 0


def test_all_stages_have_one_block_size():
    first, last = solved_on([([paged(0, (8, 16))], 9000), ([paged(0, (16, 32))], 9000)])
    assert [plan.groups[0].block_size for plan in (first, last)] == [16, 16]


def test_a_stage_without_room_is_the_one_that_is_told_of():
    with pytest.raises(MemoryBudgetError, match="has room for 16 tokens, but one request may have 64"):
        solved_on([([paged(0)], 9000), ([paged(0)], 300)])


def test_what_encoders_made_has_room_for_each_row_and_tokens_have_the_rest():
    plan = solved([paged(0), crossed(1, 40)], 100 * 128)
    tokens, encoders = plan.groups
    assert (encoders.kind, encoders.length, encoders.blocks_of(1), encoders.num_blocks) == ("cross", 40, 3, 1 + 4 * 3)
    assert tokens.num_blocks == 100 - 13
    assert plan.num_tokens == (tokens.num_blocks - 1) * 16
    assert plan.num_requests(64) == 4


def test_where_not_all_rows_have_room_for_an_encoder_as_many_have_as_fit_with_the_longest_text():
    tokens, encoders = solved([paged(0), crossed(1, 40)], 17 * 128).groups
    assert (encoders.num_blocks - 1, tokens.num_blocks - 1) == (2 * 3, 9)
    with pytest.raises(MemoryBudgetError, match="has room for 48 tokens, but one request may have 64"):
        solved([paged(0), crossed(1, 40)], 8 * 128)
