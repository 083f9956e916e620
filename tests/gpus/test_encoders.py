"""Text encoders on the platforms for GPUs, over a chip that queues, counts and captures, with the library's kernels by
Triton's interpreter: they answer as they should, and nothing runs on core's reference."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.gpus.conftest import PLATFORMS
from tests.models.encoders.families import ENCODERS, hidden_states
from tests.platforms.encoder_model import EncoderOracle, save_encoder
from tests.platforms.encoder_plugin import ENCODER_PLUGIN
from tests.platforms.engine_run import EngineRun

pytestmark = pytest.mark.compiler

TEXTS = ([7, 3, 9, 50, 2, 8, 31, 5, 16, 44, 4], [4])
DAILY = ("cuda", "bert")


def assert_on_kernels(run: EngineRun) -> None:
    build = run.executor.runner.build
    assert not build.ops.referenced
    assert not build.fallbacks


@pytest.mark.parametrize(
    ("platform", "name"),
    [
        pytest.param(platform, name, marks=() if (platform, name) == DAILY else pytest.mark.nightly)
        for platform in PLATFORMS
        for name in ("bert", "modernbert", "mpnet", "eurobert", "gemma3")
    ],
)
def test_states_are_those_of_transformers(chip: Any, tmp_path: Path, platform: str, name: str) -> None:
    model = ENCODERS[name].save("Model", tmp_path)
    with EngineRun(tmp_path, PLATFORMS[platform], depth=2, max_model_len=64, max_num_batched_tokens=64) as run:
        chip.reset()
        with chip.refused_reads():
            keys = [run.pool(text, "token_embed") for text in TEXTS]
            run.finish()
        assert chip.reads() == {}
        assert_on_kernels(run)
        for key, expected in zip(keys, hidden_states(model, TEXTS), strict=True):
            torch.testing.assert_close(torch.from_numpy(run.pooled[key]), expected, rtol=1e-4, atol=1e-4)


def test_layers_of_whole_texts_are_captured_beside_others(chip: Any, tmp_path: Path) -> None:
    folder = save_encoder(tmp_path, ("whole", "causal"))
    with EngineRun(folder, PLATFORMS["cuda"], plugins=[ENCODER_PLUGIN], max_model_len=64, max_num_seqs=1) as run:
        oracle = EncoderOracle(folder)
        assert run.ask(TEXTS, 1) == [[oracle.next_token(text)] for text in TEXTS]
        assert run.executor.runner.executables
        assert_on_kernels(run)
