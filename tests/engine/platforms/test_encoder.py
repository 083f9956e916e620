"""Models whose layers see whole texts: engines without a cache, and with one for some layers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tessera.errors import ConfigError
from tests.engine.platforms.conftest import Start
from tests.engine.platforms.test_tokens_on_every_platform import prompts
from tests.platforms.encoder_model import EncoderOracle, save_encoder
from tests.platforms.encoder_plugin import ENCODER_PLUGIN

TEXTS = [[5], *prompts(11, longest=45, seed=16), [7, 3]]

Model = Callable[..., Path]


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    known: dict[tuple[str, ...], Path] = {}

    def make(*kinds: str) -> Path:
        if kinds not in known:
            known[kinds] = save_encoder(tmp_path_factory.mktemp("models"), kinds)
        return known[kinds]

    return make


@pytest.fixture
def start_encoder(start: Start) -> Start:
    return partial(start, plugins=[ENCODER_PLUGIN], max_model_len=64)


@pytest.mark.parametrize(
    "kinds", [("whole", "window", "biased"), ("whole", "causal", "window"), ("causal", "biased")], ids="-".join
)
def test_a_text_is_read_as_a_whole_beside_others(start_encoder: Start, model: Model, kinds: tuple[str, ...]) -> None:
    folder = model(*kinds)
    run = start_encoder(folder, max_num_seqs=4)
    oracle = EncoderOracle(folder)
    assert run.ask(TEXTS, 1) == [[oracle.next_token(text)] for text in TEXTS]
    assert all((step.starts == 0).all() for step in run.steps)  # no text was split


def test_without_a_cache_no_memory_is_taken_for_one(start_encoder: Start, model: Model) -> None:
    run = start_encoder(model("whole", "whole"))
    run.ask(TEXTS[:3], 1)
    assert run.engine.info.cache_bytes == 0
    assert run.executor.runner.plan.groups == ()
    assert run.executor.runner.caches == []
    assert run.engine.stats.kv_usage == 0.0


def test_a_step_has_room_for_the_longest_text(start_encoder: Start, model: Model) -> None:
    run = start_encoder(model("whole"))
    assert run.engine.config.scheduler.max_num_batched_tokens >= 64
    with pytest.raises(ConfigError, match=r"reads a text of up to 64 tokens in one step, but --max-num-batched-tokens"):
        start_encoder(model("whole"), max_num_batched_tokens=48)
