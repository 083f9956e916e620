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
from tessera.errors import ModelError
from tests.models.encoders.families import hidden_states, logits, texts
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


SPLADE = {"1_SpladePooling": {"pooling_strategy": "max", "activation_function": "relu"}}


@pytest.mark.parametrize("platform", ["cpu", "strict"])
@pytest.mark.parametrize("family", ["bert", "roberta", "distilbert"])
def test_a_weight_for_each_token_of_the_vocabulary(saved, with_modules: With, family: str, platform: str) -> None:
    """As SPLADE's folders ask for."""
    folder, model = saved(family, "ForMaskedLM")
    wanted = [torch.log1p(torch.relu(one)).amax(0) for one in logits(model, texts())]
    assert all(0 < int((one == 0).sum()) < len(one) for one in wanted), "some of the weights are 0"
    assert_close(pooled(with_modules(folder, SPLADE), platform, "embed"), wanted)


def test_a_family_without_this_head(saved, with_modules: With) -> None:
    folder, _ = saved("mpnet", "ForMaskedLM")
    with pytest.raises(ModelError, match="MPNetForMaskedLM is not served for the task embed in the way that its files"):
        pooled(with_modules(folder, SPLADE), "cpu", "embed")
