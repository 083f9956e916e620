"""Hidden states and logits of heads are those of transformers, for texts of unlike lengths in one step."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tessera.config.pooler import PoolerConfig, PoolingTask
from tests.models.encoders.families import DECODERS, ENCODERS, LABELS, hidden_states, logits, texts
from tests.platforms.engine_run import EngineRun
from tests.platforms.threads import THREADS

TOLERANCE = 1e-4
"""Of the largest number."""
TEXT, TOKEN = "ForSequenceClassification", "ForTokenClassification"
NO_TOKEN_HEAD = ("gemma3", "gemma3-causal", "olmo2")
"""Families without a class for tokens in transformers."""


def classifier(task: PoolingTask) -> PoolerConfig:
    return PoolerConfig((task,), "cls", labels=("x",) * LABELS)


def pooled(folder: Path, platform: str, task: PoolingTask, **options: Any) -> list[np.ndarray]:
    with EngineRun(folder, platform, max_model_len=64, max_num_batched_tokens=160, **options) as run:
        keys = [run.pool(text, task) for text in texts()]
        run.finish()
        return [run.pooled[key] for key in keys]


def assert_close(found: Sequence[np.ndarray], wanted: Sequence[Tensor]) -> None:
    for one, want in zip(found, wanted, strict=True):
        assert one.shape == tuple(want.shape)
        bound = TOLERANCE * max(1.0, float(want.abs().max()))
        assert float((torch.from_numpy(one) - want).abs().max()) <= bound


@pytest.mark.parametrize("platform", ["cpu", "strict"])
@pytest.mark.parametrize("family", ENCODERS)
def test_hidden_states(saved, family, platform):
    folder, model = saved(family, "Model")
    assert_close(pooled(folder, platform, "token_embed"), hidden_states(model, texts()))


@pytest.mark.parametrize("family", [*ENCODERS, *DECODERS])
def test_logits_of_texts(saved, family):
    folder, model = saved(family, TEXT)
    found = pooled(folder, "cpu", "classify", pooler=classifier("classify"))
    assert_close(found, logits(model, texts()))


@pytest.mark.parametrize("family", [name for name in (*ENCODERS, *DECODERS) if name not in NO_TOKEN_HEAD])
def test_logits_of_tokens(saved, family):
    folder, model = saved(family, TOKEN)
    found = pooled(folder, "cpu", "token_classify", pooler=classifier("token_classify"))
    assert_close(found, logits(model, texts()))


@pytest.mark.parametrize("family", ENCODERS)
def test_two_ranks(saved, family):
    folder, model = saved(family, "Model")
    found = pooled(folder, "cpu", "token_embed", executor=THREADS, tensor_parallel_size=2)
    assert_close(found, hidden_states(model, texts()))


@pytest.mark.parametrize("family", ["bert", "modernbert"])
def test_a_head_on_two_ranks(saved, family):
    folder, model = saved(family, TEXT)
    found = pooled(folder, "cpu", "classify", pooler=classifier("classify"), executor=THREADS, tensor_parallel_size=2)
    assert_close(found, logits(model, texts()))
