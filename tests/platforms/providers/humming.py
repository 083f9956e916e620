"""Stands in for the modules humming.transform and humming.forward of the package humming-kernels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch


@dataclass(kw_only=True)
class HummingWeightSchema:
    quant_method: str = "humming"
    b_dtype: Any
    bs_dtype: Any = None
    weight_scale_group_size: int = 0
    weight_scale_group_size_n: int = 0
    weight_scale_type: Any = None
    weight_scale_2_type: Any = None
    has_zero_point: bool = False
    is_fp_zero_point: bool = False
    hadamard_block_size: int = 0


@dataclass(frozen=True)
class Layer:
    """n, k: outputs and inputs. group: inputs that share a scale."""

    n: int
    k: int
    bits: int
    group: int
    has_bias: bool
    dtype: torch.dtype


def prepare_layer_config(
    shape_n, shape_k, weight_schema, input_schema=None, num_experts=None, pad_n_to_multiple=1, pad_k_to_multiple=1,
    has_bias=False, torch_dtype=None, device=None, tensors=None,
):  # fmt: skip
    assert torch_dtype in (torch.float16, torch.bfloat16)
    assert shape_n % 64 == shape_k % 32 == 0
    bits = int(weight_schema.b_dtype.removeprefix("uint"))
    return Layer(shape_n, shape_k, bits, weight_schema.weight_scale_group_size or shape_k, has_bias, torch_dtype)


def prepare_and_transform_humming_tensors(
    tensors, shape_n, shape_k, weight_schema, input_schema=None, num_experts=None, pad_n_to_multiple=1,
    pad_k_to_multiple=1, has_bias=False, torch_dtype=None, device=None,
):  # fmt: skip
    """Checks what the package demands, and arranges the tensors in another way than they were given in."""
    layer = prepare_layer_config(shape_n, shape_k, weight_schema, has_bias=has_bias, torch_dtype=torch_dtype)
    weight, scale = tensors["weight"], tensors["weight_scale"]
    assert (weight.dtype, weight.shape) == (torch.int32, (layer.n, layer.k * layer.bits // 32)), "weight mismatched"
    assert (scale.dtype, scale.shape) == (layer.dtype, (layer.n, layer.k // layer.group)), "weight_scale mismatched"
    assert weight.is_contiguous()
    made = {"weight": weight.flip(0, 1).view(layer.k // 16, -1), "weight_scale": scale.T.contiguous()}
    if has_bias:
        assert (tensors["bias"].dtype, tensors["bias"].shape) == (layer.dtype, (layer.n,)), "bias mismatched"
        made["bias"] = tensors["bias"].flip(0)
    assert set(tensors) == set(made)
    return layer, made


def humming_forward(
    config, inputs, weight, weight_scale=None, zero_point=None, bias=None, weight_scale_2=None, outputs=None,
    input_scale=None, input_scale_2=None, sorted_ids=None, expert_ids=None, num_tokens_padded=None, expert_layout=None,
    locks=None, top_k=1, valid_shape_m=0, compute_config=None, tuning_config=None, hadamard_block_size=None,
    use_pdl=None,
):  # fmt: skip
    assert inputs.is_contiguous()
    assert (inputs.dtype, inputs.shape[1]) == (config.dtype, config.k)
    assert locks is not None, "locks must not be none if use_stream_k"
    assert (locks.dtype, int(locks.count_nonzero())) == (torch.int32, 0)
    assert (bias is not None) == config.has_bias
    words = weight.view(config.n, -1).flip(0, 1)
    shifts = torch.arange(0, 32, config.bits, dtype=torch.int32)
    numbers = (words[..., None] >> shifts & (1 << config.bits) - 1).flatten(1) - (1 << config.bits - 1)
    wide = numbers.float() * weight_scale.T.float().repeat_interleave(config.group, 1)
    made = inputs.float() @ wide.T
    return (made if bias is None else made + bias.flip(0).float()).to(config.dtype)
