"""What takes the place of transformers' norms, rotary embeddings and convolutions of patches computes what they do."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest
import torch
from torch import nn
from transformers import CLIPVisionConfig, CLIPVisionModel
from transformers.models.gemma.modeling_gemma import GemmaRMSNorm
from transformers.models.glm4v.modeling_glm4v import Glm4vVisionAttention
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.models.qwen2_5_vl.configuration_qwen2_5_vl import Qwen2_5_VLVisionConfig
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VLVisionAttention
from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextRMSNormGated
from transformers.models.t5.modeling_t5 import T5LayerNorm

from tessera.layers.build import Build
from tessera.models.through_transformers import rotary
from tessera.models.through_transformers.names import CheckpointNames
from tessera.models.through_transformers.norms import BoundNorm, computed_norm
from tessera.models.through_transformers.surgery import BoundPatches
from tessera.ops import NormSpec
from tessera.platform import BoundOps
from tessera.reference import reference_backends
from tessera.testing import REFERENCE
from tessera_cpu.platform import CpuPlatform


class Doubled(LlamaRMSNorm):
    """As it might be changed."""

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return super().forward(hidden_states) * 1.01


def build_of(dtype: str = "float32") -> Build:
    platform = CpuPlatform()
    device = platform.open(0)
    return Build(BoundOps(platform.ops(REFERENCE), device), device, dtype, reference_backends())


@pytest.mark.parametrize(
    ("module", "offset"),
    [(LlamaRMSNorm(37, eps=1e-5), 0.0), (GemmaRMSNorm(37, eps=1e-3), 1.0), (T5LayerNorm(37, eps=1e-2), 0.0)],
    ids=lambda value: type(value).__name__,
)
def test_norms_are_told_by_what_they_compute(module: Any, offset: float) -> None:
    spec = computed_norm(module.to("meta"), "float32")
    eps = getattr(module, "variance_epsilon", None) or module.eps
    assert spec == NormSpec(37, "float32", eps, offset)


@pytest.mark.parametrize(
    "module",
    [Doubled(37), nn.LayerNorm(37), nn.LayerNorm(37, bias=False), Qwen3NextRMSNormGated(37), nn.PReLU(37)],
    ids=str,
)
def test_what_is_no_such_norm_is_left_as_it_is(module: nn.Module) -> None:
    assert computed_norm(module, "float32") is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_bound_norm_is_the_module_s(dtype: torch.dtype) -> None:
    module = GemmaRMSNorm(40, eps=1e-5)
    nn.init.normal_(module.weight)
    bound = BoundNorm(build_of(), module, NormSpec(40, "float32", 1e-5, 1.0))
    x = torch.randn(2, 3, 7, 40).to(dtype).transpose(1, 2)
    found = bound(x)
    assert found.dtype == dtype
    torch.testing.assert_close(found, module(x))


def vision_attention() -> Any:
    config = Qwen2_5_VLVisionConfig(hidden_size=48, num_heads=3, depth=1, intermediate_size=40)
    config._attn_implementation = "sdpa"
    return Qwen2_5_VLVisionAttention(config).eval().requires_grad_(False)


@pytest.mark.parametrize("paired", [True, False])
def test_bound_rotary_embeddings_are_the_module_s(paired: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Elements of a pair with unlike angles, which the op knows nothing of, are left to transformers' function."""
    theirs, bound = vision_attention(), vision_attention()
    bound.load_state_dict(theirs.state_dict())
    rotary.bind_rotary(build_of(), bound)
    own = bound.forward.__func__.__globals__[rotary.NAME]
    calls, call = [], own.call
    monkeypatch.setattr(own, "call", lambda *arguments: calls.append(call(*arguments)))
    halves = torch.randn(2, 11, 8)
    angles = torch.cat((halves[0], halves[0 if paired else 1]), dim=-1)
    ends, x = torch.tensor([0, 5, 11], dtype=torch.int32), torch.randn(11, 48)
    arguments = {"cu_seqlens": ends, "position_embeddings": (angles.cos(), angles.sin())}
    for _ in range(2):
        torch.testing.assert_close(bound(x, **arguments), theirs(x, **arguments))
    assert len(calls) == (2 if paired else 0)
    module = import_module(Qwen2_5_VLVisionAttention.__module__)
    assert not isinstance(getattr(module, rotary.NAME), rotary.BoundRotary)  # transformers is left as it is
    assert "forward" not in vars(theirs)


def test_the_style_of_a_rotation_is_told_by_what_it_computes() -> None:
    theirs = import_module(Glm4vVisionAttention.__module__).apply_rotary_pos_emb_vision
    assert rotary.rotary_style(theirs, 8) == "half"
    assert rotary.rotary_style(lambda q, k, cos, sin: theirs(k, q, cos, sin), 8) is None

    def neighbours(q: Any, k: Any, cos: Any, sin: Any) -> tuple[Any, Any]:
        turned = [torch.stack((-x[..., 1::2], x[..., 0::2]), dim=-1).flatten(-2) for x in (q, k)]
        return tuple(x * cos[:, None] + other * sin[:, None] for x, other in zip((q, k), turned, strict=True))

    assert rotary.rotary_style(neighbours, 8) == "pairs"


@pytest.mark.parametrize(("kernel", "size"), [((4, 4), (13, 9)), ((2, 3, 5), (4, 7, 11)), ((1, 2), (3, 6))])
@pytest.mark.parametrize("bias", [True, False])
def test_bound_patches_are_the_convolution(kernel: tuple[int, ...], size: tuple[int, ...], bias: bool) -> None:
    kind = nn.Conv2d if len(kernel) == 2 else nn.Conv3d
    whole = CLIPVisionModel(CLIPVisionConfig(hidden_size=8, num_hidden_layers=0, num_attention_heads=1))
    module = kind(3, 10, kernel, stride=kernel, bias=bias).requires_grad_(False)
    whole.base_model.patches = module
    assert BoundPatches.computes(module)
    build = build_of()
    bound = BoundPatches(build, CheckpointNames(whole, "float32"), module)
    for parameter in bound.products.parameters:
        raw = {"weight": module.weight.flatten(1)} | ({} if module.bias is None else {"bias": module.bias})
        parameter.fill(raw)
    x = torch.randn(2, 3, *size)
    torch.testing.assert_close(bound(x), module(x), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    "module",
    [
        nn.Conv2d(4, 4, 3, stride=2), nn.Conv2d(4, 4, 2, stride=2, padding=1), nn.Conv2d(4, 4, 2, stride=2, groups=2),
        nn.Conv2d(4, 4, 2, stride=2, dilation=2), nn.Conv1d(4, 4, 2, stride=2), nn.ConvTranspose2d(4, 4, 2, stride=2),
    ],
    ids=str,
)  # fmt: skip
def test_other_convolutions_are_not_patches(module: nn.Module) -> None:
    assert not BoundPatches.computes(module)
