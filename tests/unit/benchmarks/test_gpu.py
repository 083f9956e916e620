"""The arithmetic of benchmarks/gpu: bytes and operations of a token, rates of steps, shares of time, goals."""

from __future__ import annotations

import pytest
from benchmarks.gpu.arithmetic import Step, busy_share, merged, rate_between, rates
from benchmarks.gpu.figures import Figure
from benchmarks.gpu.models import (
    LLAMA_8B,
    QWEN_06B,
    attention_flops,
    kv_bytes,
    outer_tensors,
    parameters,
    prompt_flops,
    shards,
    tiny,
    token_bytes,
)


def test_the_shapes_have_as_many_parameters_as_the_models():
    assert parameters(LLAMA_8B) == 8_030_261_248
    assert parameters(QWEN_06B) == 596_049_920


def test_a_token_reads_all_weights_but_the_embedding_s_rows_and_its_context():
    assert token_bytes(LLAMA_8B, 0) == 2 * (8_030_261_248 - 128_256 * 4096)
    assert kv_bytes(LLAMA_8B) == 131_072
    assert token_bytes(LLAMA_8B, 1000) - token_bytes(LLAMA_8B, 0) == 131_072_000


def test_a_tied_embedding_is_read_whole_as_the_head():
    assert token_bytes(QWEN_06B, 0) == 2 * 596_049_920
    assert "lm_head.weight" not in outer_tensors(QWEN_06B)


def test_a_query_sees_the_keys_before_it_and_its_own():
    sizes = {**LLAMA_8B, "num_attention_heads": 1, "head_dim": 1}
    assert attention_flops(sizes, 3) == 4 * (1 + 2 + 3)


def test_a_prompt_needs_each_matrix_for_each_token_and_the_head_once():
    sizes = {
        **LLAMA_8B, "hidden_size": 2, "intermediate_size": 3, "num_hidden_layers": 2, "num_attention_heads": 2,
        "num_key_value_heads": 1, "head_dim": 1, "vocab_size": 10,
    }  # fmt: skip
    matrices = 2 * 2 + 2 * 1 * 2 + 2 * 2 + 3 * 3 * 2
    assert prompt_flops(sizes, 5) == 2 * (2 * matrices * 5 + 4 * 2 * 15) + 2 * 10 * 2
    # Of the whole model: about two operations for each weight of the layers and each token.
    assert prompt_flops(LLAMA_8B, 2048) == pytest.approx(2 * 6.98e9 * 2048, rel=0.05)


def test_a_checkpoint_has_each_tensor_once():
    names = [name for shard in shards(tiny(QWEN_06B)) for name in shard]
    assert len(names) == len(set(names))
    assert "model.layers.0.self_attn.q_norm.weight" in names


def test_decode_counts_while_all_rows_run():
    steps = [Step(1, [0]), Step(2, [0, 1]), Step(3, [0, 1]), Step(4, [0, 1]), Step(5, [1])]
    found = rates(0, steps, [4, 4])
    assert found.first == 2
    assert found.decode == 4 / (4 - 2)
    assert found.whole == 8 / 5


def test_there_is_no_decode_where_rows_never_run_together():
    assert rates(0, [Step(1, [0]), Step(2, [1])], [1, 1]).decode == 0


@pytest.mark.parametrize(
    ("intervals", "length"),
    [([], 0), ([(0, 2), (1, 3)], 3), ([(0, 9), (1, 2), (3, 4)], 9), ([(5, 6), (0, 1)], 2), ([(0, 1), (1, 2)], 2)],
)
def test_what_overlaps_counts_once(intervals: list[tuple[float, float]], length: float):
    assert merged(intervals) == length


def test_a_queue_is_timed_between_two_ends():
    """Two at a time, three tokens each: requests end after seconds 3, 6 and 9, two at once."""
    steps = [Step(float(second), [2 * ((second - 1) // 3), 2 * ((second - 1) // 3) + 1]) for second in range(1, 10)]
    assert rate_between(steps, 3, 2, 6) == 2.0
    assert rate_between(steps, 3, 1, 3) == 2.0
    with pytest.raises(ValueError, match="no time passed"):
        rate_between(steps, 3, 5, 6)


def test_the_busy_share_is_of_the_time_between_the_first_start_and_the_last_end():
    assert busy_share([(10, 12), (11, 13), (19, 20)]) == pytest.approx(0.4)
    assert busy_share([]) == 0


def test_a_ratio_of_one_meets_the_goal():
    assert Figure("rate", 0.68, "", 0.85).ratio == pytest.approx(0.8)
    assert Figure("start", 5, "s", 10, less_is_better=True).ratio == 2
    assert Figure("copy", 5, "GB/s").ratio is None
