"""Hidden states and logits of heads are those of transformers, for texts of unlike lengths in one step."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tessera.config.pooler import PoolingTask
from tests.models.encoders.families import DECODERS, ENCODERS, WITHOUT_HEADS, hidden_states, logits, texts
from tests.platforms.engine_run import EngineRun
from tests.platforms.threads import THREADS

TOLERANCE = 1e-4
"""Of the largest number."""
TEXT, TOKEN = "ForSequenceClassification", "ForTokenClassification"
NO_TOKEN_HEAD = ("gemma3", "gemma3-causal", "olmo2")
"""Families without a class for tokens in transformers."""


def pooled(folder: Path, platform: str, task: PoolingTask, **options: Any) -> list[np.ndarray]:
    with EngineRun(folder, platform, max_model_len=64, max_num_batched_tokens=160, **options) as run:
        keys = [run.pool(text, task) for text in texts()]
        run.finish()
        return [run.pooled[key] for key in keys]


def say(folder: Path, **differs: Any) -> None:
    """In config.json."""
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text(encoding="utf-8")), **differs}), encoding="utf-8")


def assert_close(found: Sequence[np.ndarray], wanted: Sequence[Tensor]) -> None:
    for one, want in zip(found, wanted, strict=True):
        assert one.shape == tuple(want.shape)
        bound = TOLERANCE * max(1.0, float(want.abs().max()))
        assert float((torch.from_numpy(one) - want).abs().max()) <= bound


@pytest.mark.parametrize("platform", ["cpu", "strict"])
@pytest.mark.parametrize("family", [*ENCODERS, *WITHOUT_HEADS])
def test_hidden_states(saved, family, platform):
    folder, model = saved(family, "Model")
    assert_close(pooled(folder, platform, "token_embed"), hidden_states(model, texts()))


@pytest.mark.parametrize("family", [*ENCODERS, *DECODERS])
def test_logits_of_texts(saved, family):
    folder, model = saved(family, TEXT)
    found = pooled(folder, "cpu", "classify")
    assert_close(found, logits(model, texts()))


@pytest.mark.parametrize("family", [name for name in (*ENCODERS, *DECODERS) if name not in NO_TOKEN_HEAD])
def test_logits_of_tokens(saved, family):
    folder, model = saved(family, TOKEN)
    found = pooled(folder, "cpu", "token_classify")
    assert_close(found, logits(model, texts()))


@pytest.mark.parametrize("family", ENCODERS)
def test_two_ranks(saved, family):
    folder, model = saved(family, "Model")
    found = pooled(folder, "cpu", "token_embed", executor=THREADS, tensor_parallel_size=2)
    assert_close(found, hidden_states(model, texts()))


@pytest.mark.parametrize("family", ["bert", "modernbert"])
def test_a_head_on_two_ranks(saved, family):
    folder, model = saved(family, TEXT)
    found = pooled(folder, "cpu", "classify", executor=THREADS, tensor_parallel_size=2)
    assert_close(found, logits(model, texts()))


BOUNDARIES = (9, None, 16, 21, 1, None, 1, 44)
"""Where the second text of each begins; None: there is one text."""


@pytest.mark.parametrize("platform", ["cpu", "strict"])
@pytest.mark.parametrize("family", ["bert", "electra", "albert", "nomic"])
def test_types_of_tokens(saved, family, platform):
    folder, model = saved(family, "Model")
    with EngineRun(folder, platform, max_model_len=64, max_num_batched_tokens=160) as run:
        columns = [{} if at is None else {"type_boundary": at} for at in BOUNDARIES]
        keys = [run.pool(text, "token_embed", columns=one) for text, one in zip(texts(), columns, strict=True)]
        run.finish()
        found = [run.pooled[key] for key in keys]
    types = [
        torch.tensor([[int(at is not None and place >= at) for place in range(len(text))]])
        for text, at in zip(texts(), BOUNDARIES, strict=True)
    ]
    wanted = [hidden_states(model, [text], token_type_ids=kinds)[0] for text, kinds in zip(texts(), types, strict=True)]
    assert_close(found, wanted)


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3-causal"])
def test_a_decoder_without_its_head(saved, family):
    folder, model = saved(family, "Model")
    assert_close(pooled(folder, "cpu", "token_embed"), hidden_states(model, texts()))


MASKED = ["bert", "roberta", "electra", "distilbert", "mpnet", "albert", "modernbert", "nomic", "gte", "jina-v3"]


@pytest.mark.parametrize("family", MASKED)
def test_a_model_with_a_head_that_is_not_served(saved, family):
    folder, model = saved(family, "ForMaskedLM")
    assert_close(pooled(folder, "cpu", "token_embed"), hidden_states(model.base_model, texts()))


def test_a_model_whose_files_have_no_head_though_config_json_names_one(saved, tmp_path):
    folder, model = saved("mpnet", "Model")
    copy = shutil.copytree(folder, tmp_path / "model")
    say(copy, architectures=["MPNetForMaskedLM"])
    assert_close(pooled(copy, "cpu", "token_embed"), hidden_states(model, texts()))


def test_names_of_norms_that_were_tensorflows(saved, tmp_path):
    folder, model = saved("bert", "Model")
    copy = shutil.copytree(folder, tmp_path / "model")
    tensors = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): tensor
        for name, tensor in load_file(copy / "model.safetensors").items()
    }
    save_file(tensors, copy / "model.safetensors")
    assert_close(pooled(copy, "cpu", "token_embed"), hidden_states(model, texts()))


def test_a_llama_that_is_not_causal(saved, tmp_path):
    """EuroBERT is one, under another name."""
    folder, model = saved("eurobert", "Model")
    copy = shutil.copytree(folder, tmp_path / "model")
    say(copy, architectures=["LlamaModel"], model_type="llama", is_causal=False)
    assert_close(pooled(copy, "cpu", "token_embed"), hidden_states(model, texts()))


@pytest.mark.parametrize(("pooling", "temperature"), [("mean", 1.0), ("bos", 0.2)])
def test_a_llama_that_sees_the_whole_text(saved, tmp_path, pooling, temperature):
    """EuroBERT's layers, and one that scores the pooled states, divided by a temperature."""
    folder, model = saved("eurobert", "Model")
    score = torch.randn(3, model.config.hidden_size, generator=torch.Generator().manual_seed(1))
    copy = shutil.copytree(folder, tmp_path / "model")
    tensors = {f"model.{name}": tensor for name, tensor in load_file(copy / "model.safetensors").items()}
    save_file({**tensors, "score.weight": score}, copy / "model.safetensors")
    says = {"pooling": "avg" if pooling == "mean" else "cls", "temperature": temperature}
    say(copy, architectures=["LlamaBidirectionalForSequenceClassification"], model_type="llama_bidirec", **says)
    states = hidden_states(model, texts())
    wanted = [(one.mean(0) if pooling == "mean" else one[0]) @ score.T / temperature for one in states]
    assert_close(pooled(copy, "cpu", "classify"), wanted)
    say(copy, architectures=["LlamaBidirectionalModel"])
    wanted = [one.mean(0) if pooling == "mean" else one[0] for one in states]
    assert_close(pooled(copy, "cpu", "embed"), wanted)


def test_the_first_files_of_gte_call_it_new(saved, tmp_path):
    folder, model = saved("gte", "ForSequenceClassification")
    copy = shutil.copytree(folder, tmp_path / "model")
    tensors = {re.sub("^gte", "new", name): tensor for name, tensor in load_file(copy / "model.safetensors").items()}
    save_file(tensors, copy / "model.safetensors")
    say(copy, architectures=["NewForSequenceClassification"], position_embedding_type="rope")
    assert_close(pooled(copy, "cpu", "classify"), logits(model, texts()))
