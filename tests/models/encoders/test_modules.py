"""Modules of sentence-transformers behind an encoder that are no pooling of its states: what they compute, by hand."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch.nn import functional as F

from tessera.config.pooler import PoolingTask
from tests.models.encoders.families import hidden_states, texts
from tests.models.encoders.test_parity import assert_close, pooled

With = Callable[[Path, Mapping[str, Any]], Path]


@pytest.fixture
def with_modules(tmp_path: Path) -> With:
    """A copy of the folder with these modules behind it, by the path of each, such as "1_Dense", with its config."""

    def of(folder: Path, modules: Mapping[str, Any]) -> Path:
        copy = shutil.copytree(folder, tmp_path / "model")
        kinds = {"": "Transformer", **{path: path.partition("_")[2] for path in modules}}
        said = [{"path": path, "type": f"sentence_transformers.models.{kind}"} for path, kind in kinds.items()]
        (copy / "modules.json").write_text(json.dumps(said))
        for path, config in modules.items():
            (copy / path).mkdir()
            (copy / path / "config.json").write_text(json.dumps(config))
        return copy

    return of


@pytest.mark.parametrize("family", ["bert", "modernbert"])
def test_a_dense_layer_for_each_token(saved, with_modules: With, family: str) -> None:
    """As in ColBERT's folders."""
    folder, model = saved(family, "Model")
    identity = "torch.nn.modules.linear.Identity"
    dense = {"in_features": 72, "out_features": 13, "bias": False, "activation_function": identity}
    copy = with_modules(folder, {"1_Dense": dense})
    weight = torch.randn(13, 72, generator=torch.Generator().manual_seed(2))
    save_file({"linear.weight": weight}, copy / "1_Dense" / "model.safetensors")
    task: PoolingTask = "token_embed"
    assert_close(pooled(copy, "cpu", task), [F.linear(states, weight) for states in hidden_states(model, texts())])
