"""Slopes of linear biases are those of transformers, for every number of heads."""

from __future__ import annotations

import pytest
import torch
from transformers.models.bloom.modeling_bloom import build_alibi_tensor
from transformers.models.mpt.modeling_mpt import build_mpt_alibi_tensor

from tessera.models.alibi import alibi_slopes
from tests.models.test_config_defaults import SPARSE, config_of

FALCON = {**SPARSE, "hidden_size": 640, "num_attention_heads": 10, "alibi": True}


@pytest.mark.parametrize("heads", [*range(1, 20), 32, 71, 112])
def test_slopes_of_bloom(heads):
    theirs = build_alibi_tensor(torch.ones(1, 2, dtype=torch.long), heads, torch.float32)[:, 0, 1]
    torch.testing.assert_close(torch.tensor(alibi_slopes(heads)), theirs)


@pytest.mark.parametrize("most", [8, 5, 16])
@pytest.mark.parametrize("heads", [*range(1, 20), 32, 40, 112])
def test_slopes_of_mpt(heads, most):
    theirs = -build_mpt_alibi_tensor(heads, 2, most)[:, 0, 0]
    torch.testing.assert_close(torch.tensor(alibi_slopes(heads, most)), theirs)


@pytest.mark.parametrize("different", [{}, {"multi_query": False, "parallel_attn": False}])
def test_the_biases_of_falcon_are_scaled_as_its_scores(different):
    for layer in config_of("FalconForCausalLM", {**FALCON, **different}).layers:
        assert (layer.rope, layer.scale) == (None, 64**-0.5)
        assert layer.slopes == tuple(slope / 8 for slope in alibi_slopes(10))
