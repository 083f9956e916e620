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
