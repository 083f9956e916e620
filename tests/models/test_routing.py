"""The op route computes what the routers of transformers do."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import DeepseekV2Config, DeepseekV3Config, Glm4MoeConfig
from transformers.models.deepseek_v2.modeling_deepseek_v2 import DeepseekV2TopkRouter
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3TopkRouter
from transformers.models.glm4_moe.modeling_glm4_moe import Glm4MoeTopkRouter

from tessera.ops import REFERENCE, RouteSpec
from tessera.platform import BoundOps
from tessera.testing import ReferencePlatform, assert_same
from tessera_cpu.platform import CpuPlatform

EXPERTS, HIDDEN, TOP_K = 21, 36, 4
SIZES = {"n_routed_experts": EXPERTS, "hidden_size": HIDDEN, "num_experts_per_tok": TOP_K, "num_attention_heads": 4}
GROUPS = {"n_group": 7, "topk_group": 3}
BY_TWO = {"groups": 7, "top_groups": 3, "group_top_k": 2}
SIGMOID: dict[str, Any] = {"scoring": "sigmoid", "bias": True}

ROUTERS = {
    "deepseek v2": (
        DeepseekV2TopkRouter,
        DeepseekV2Config(**SIZES, topk_method="greedy", routed_scaling_factor=16.0),
        RouteSpec(EXPERTS, TOP_K, renormalise=False, scale=16.0),
    ),
    "deepseek v2 in groups": (
        DeepseekV2TopkRouter,
        DeepseekV2Config(**SIZES, **GROUPS, topk_method="group_limited_greedy"),
        RouteSpec(EXPERTS, TOP_K, renormalise=False, groups=7, top_groups=3),
    ),
    "deepseek v3": (
        DeepseekV3TopkRouter,
        DeepseekV3Config(**SIZES, **GROUPS, routed_scaling_factor=2.5),
        RouteSpec(EXPERTS, TOP_K, **SIGMOID, **BY_TWO, scale=2.5),
    ),
    "glm 4.5": (
        Glm4MoeTopkRouter,
        Glm4MoeConfig(**SIZES, norm_topk_prob=False),
        RouteSpec(EXPERTS, TOP_K, **SIGMOID, renormalise=False),
    ),
    "glm in groups": (
        Glm4MoeTopkRouter,
        Glm4MoeConfig(**SIZES, **GROUPS, routed_scaling_factor=0.7),
        RouteSpec(EXPERTS, TOP_K, **SIGMOID, **BY_TWO, scale=0.7),
    ),
}


@pytest.mark.parametrize("platform", [ReferencePlatform, CpuPlatform])
@pytest.mark.parametrize(("router", "config", "spec"), ROUTERS.values(), ids=ROUTERS)
def test_the_same_experts_with_the_same_weights(router: Any, config: Any, spec: RouteSpec, platform: Any) -> None:
    torch.manual_seed(6)
    theirs, x = router(config), torch.randn(113, HIDDEN)
    torch.nn.init.normal_(theirs.weight, std=0.3)
    bias = ()
    if spec.bias:
        theirs.e_score_correction_bias.uniform_(-2.0, 0.5)
        bias = (theirs.e_score_correction_bias,)
    with torch.no_grad():
        logits, expected, chosen = theirs(x)
    made = platform()
    route = BoundOps(made.ops(REFERENCE), made.open(0)).bind("route", spec)
    weights, ids = route(logits.detach(), *bias)
    order, others = ids.argsort(-1), chosen.argsort(-1)  # theirs are in no order
    assert torch.equal(ids.gather(-1, order).long(), chosen.gather(-1, others))
    assert_same(weights.gather(-1, order), expected.gather(-1, others), 1e-6)
