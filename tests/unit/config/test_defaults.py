"""A platform's defaults, and what becomes of them where they do not go with what the user set."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tessera.config import EngineConfig, ModelConfig, SchedulerConfig
from tessera.config.defaults import fill_defaults
from tessera.errors import ConfigError
from tessera.platform import memory_defaults

ROWS, TOKENS = "scheduler.max_num_seqs", "scheduler.max_num_batched_tokens"
LARGE = memory_defaults(80 << 30)


def config(explicit=(), *, max_model_len=4096, **scheduler):
    made = EngineConfig(
        ModelConfig("", "fake", {}, 100, max_model_len), platform="fake", scheduler=SchedulerConfig(**scheduler)
    )
    return replace(made, explicit_fields=frozenset(explicit))


def limits(made):
    return made.scheduler.max_num_seqs, made.scheduler.max_num_batched_tokens


def test_a_device_with_much_memory_gets_more_rows_and_tokens_and_the_reason_says_so():
    filled, notes = fill_defaults(config(), LARGE)
    assert limits(filled) == (1024, 8192)
    assert notes == [
        f"{ROWS} = 1024: a device has 80 GiB of memory",
        f"{TOKENS} = 8192: a device has 80 GiB of memory",
    ]


@pytest.mark.parametrize("nbytes", [0, 24 << 30, (70 << 30) - 1])
def test_others_keep_cores(nbytes):
    assert fill_defaults(config(), memory_defaults(nbytes)) == (config(), [])


def test_what_the_user_sets_holds():
    set_by_user = config([ROWS, TOKENS], max_num_seqs=64, max_num_batched_tokens=512)
    assert fill_defaults(set_by_user, LARGE) == (set_by_user, [])


def test_there_are_no_more_rows_than_the_tokens_that_the_user_allows():
    filled, notes = fill_defaults(config([TOKENS], max_num_batched_tokens=512), LARGE)
    assert limits(filled) == (512, 512)
    assert notes == [f"{ROWS} = 512: a step of max_num_batched_tokens holds a token of each request"]


@pytest.mark.parametrize(
    ("made", "tokens"),
    [
        (config([ROWS], max_num_seqs=10_000, max_num_batched_tokens=10_000), 10_000),
        (config(chunked_prefill=False, max_model_len=32_768, max_num_batched_tokens=32_768), 32_768),
    ],
)
def test_a_step_holds_what_it_has_to(made, tokens):
    filled, notes = fill_defaults(made, LARGE)
    assert filled.scheduler.max_num_batched_tokens == tokens
    assert notes[-1].startswith(f"{TOKENS} = {tokens}: a step holds a token of each request")


def test_a_model_that_reads_texts_whole_gets_room_for_the_longest():
    filled, notes = fill_defaults(config(max_model_len=9000), {}, chunkable=False)
    assert filled.scheduler.max_num_batched_tokens == 9000
    assert not filled.scheduler.chunked_prefill
    assert notes == [
        f"{TOKENS} = 9000: a step holds a token of each request, and without chunked prefill a prompt",
    ]


def test_a_model_that_reads_texts_whole_refuses_less_room():
    less = config([TOKENS], max_num_batched_tokens=512)
    with pytest.raises(ConfigError, match="a text of up to 4096 tokens in one step, .* is 512; raise it, or lower"):
        fill_defaults(less, {}, chunkable=False)
