"""torch.ops.hpu. Each runs as an op of the device, which queues, counts and records it."""

from __future__ import annotations

import torch
import torch.nn.functional as F

E4M3 = torch.float8_e4m3fn
library = torch.library.Library("hpu", "DEF")


def op(schema):
    """Registers a function as the op of a schema."""

    def registered(function):
        library.define(schema)
        library.impl(schema.partition("(")[0], function, "CPU")
        return function

    return registered


@op(
    "sdpa_recomp_fwd(Tensor q, Tensor k, Tensor v, Tensor? attention_mask, float dropout_p, float scale, "
    "bool is_causal, bool requires_backward, str softmax_mode, Tensor? valid_seq_len, str seq_padding_type) -> Tensor"
)
def sdpa(q, k, v, mask, dropout, scale, is_causal, backward, softmax_mode, valid_seq_len, padding_side):
    """q [R, H, W, D]; k, v [R, Hk, K, D]; mask [R, 1, W, K], added to the scores."""
    assert (dropout, is_causal, valid_seq_len, softmax_mode) == (0.0, False, None, "None")
    assert mask.dtype == q.dtype == k.dtype
    wide = (each.float() for each in (q, k, v, mask))
    return F.scaled_dot_product_attention(*wide, scale=scale, enable_gqa=True).to(q.dtype)


@op("rms_norm_fast(Tensor data_in, Tensor gamma, float epsilon) -> Tensor")
def rms_norm(x, weight, epsilon):
    assert x.dim() == 3, "SynapseAI's norm takes three dimensions"
    wide = x.float()
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + epsilon) * weight.float()).to(x.dtype)


@op("rotary_pos_embedding(Tensor input, Tensor sin, Tensor cos, Tensor? position_ids, int offset, int mode) -> Tensor")
def rotary(x, sin, cos, position_ids, offset, mode):
    assert (position_ids, offset) == (None, 0)
    assert x.dtype == sin.dtype == cos.dtype
    assert x.shape[-1] == sin.shape[-1]
    if mode == 0:  # blocks
        a, b = x.chunk(2, dim=-1)
        turned = torch.cat((-b, a), dim=-1)
    else:
        turned = torch.stack((-x[..., 1::2], x[..., 0::2]), dim=-1).flatten(-2)
    return (x.float() * cos.float() + turned.float() * sin.float()).to(x.dtype)


@op(
    "mixture_of_experts.fused_weights(Tensor hidden_states, Tensor expert_routing_table, Tensor router_weights, "
    "Tensor[] w12, Tensor[] w3, bool permuted_weights, str activation, int experts_min, int experts_max) -> Tensor"
)
def mixture_of_experts(x, table, weights, w12, w3, permuted_weights, activation, experts_min, experts_max):
    assert table.dtype == torch.int64
    assert weights.dtype == x.dtype
    assert permuted_weights
    assert len(w12) == len(w3) == experts_max - experts_min + 1
    act = {"silu": F.silu, "gelu": lambda gate: F.gelu(gate, approximate="tanh")}[activation]
    total = torch.zeros_like(x, dtype=torch.float32)
    for number, (up, down) in enumerate(zip(w12, w3, strict=True), experts_min):
        left, right = F.linear(x, up).float().chunk(2, dim=-1)
        hidden = (act(left) * right).to(x.dtype)
        share = (weights.float() * (table == number)).sum(-1, keepdim=True)
        total += share * F.linear(hidden, down).float()
    return total.to(x.dtype)


@op(
    "cast_to_fp8_v2(Tensor input, Tensor? scale=None, bool stochastic_rounding=False, bool is_amax=False, "
    "ScalarType? dtype=None) -> (Tensor, Tensor)"
)
def cast_to_fp8_v2(x, scale=None, stochastic_rounding=False, is_amax=False, dtype=None):
    assert (stochastic_rounding, is_amax, dtype) == (False, False, E4M3)
    return (x.float() * scale).to(E4M3), torch.zeros(1)


@op(
    "fp8_gemm_v2(Tensor A, bool trans_A, Tensor B, bool trans_B, Tensor? D, ScalarType out_dtype, "
    "Tensor? A_scale_inv=None, Tensor? B_scale_inv=None, Tensor? bias=None, bool accumulate=False) -> Tensor"
)
def fp8_gemm_v2(a, trans_a, b, trans_b, d, out_dtype, a_scale, b_scale, bias=None, accumulate=False):
    """A [T, k] and B [n, k] in fp8; scales [T, 1] or [1], and [n] or [1]."""
    assert (trans_a, trans_b, d, accumulate) == (False, True, None, False)
    assert a.dtype == b.dtype == E4M3
    assert a_scale.dtype == b_scale.dtype == torch.float32
    assert a_scale.shape in ((len(a), 1), (1,))
    assert b_scale.shape in ((len(b),), (1,))
    made = _numbers(a) @ _numbers(b).T * a_scale * b_scale
    return (made if bias is None else made + bias.float()).to(out_dtype)


def _numbers(data):
    """What bytes mean to the device: on Gaudi 2 those beyond 240 are no numbers."""
    largest = 240.0 if torch.hpu.get_device_name() == "GAUDI2" else 448.0
    wide = data.float()
    return torch.where(wide.abs() > largest, torch.nan, wide)
