"""torch.ops.npu: each op has the published wheel's schema, so torch checks every call against it, and runs as an op of
the device, which queues, counts and records it."""

from __future__ import annotations

import json
from pathlib import Path

import torch
import torch.nn.functional as F

_FILE = Path(__file__).parents[5] / "platforms/ascend/tests/torch_npu.json"
SCHEMAS = json.loads(_FILE.read_text(encoding="utf-8"))["ops"]["libtorch_npu"]

library = torch.library.Library("npu", "DEF")
for schema in SCHEMAS:
    library.define(schema)

_HALVES = (torch.bfloat16, torch.float16)


def op(function):
    """The implementation of the op of its name."""
    library.impl(function.__name__, function, "CPU")
    return function


def _normed(x, gamma, epsilon):
    wide = x.float()
    root = torch.rsqrt(wide.square().mean(-1, keepdim=True) + epsilon)
    return (wide * root * gamma.float()).to(x.dtype), root


@op
def npu_rms_norm(x, gamma, epsilon=1e-06):
    return _normed(x, gamma, epsilon)


@op
def npu_gemma_rms_norm(x, gamma, epsilon=1e-06):
    return _normed(x, gamma.float() + 1, epsilon)


@op
def npu_add_rms_norm(x1, x2, gamma, epsilon=1e-06):
    assert x1.dtype == x2.dtype == gamma.dtype
    both = x1 + x2
    return *_normed(both, gamma, epsilon), both


@op
def npu_rotary_mul(x, r1, r2, rotary_mode="half", rotate=None):
    assert x.dim() == r1.dim() == r2.dim() == 4
    assert x.dtype == r1.dtype == r2.dtype
    assert x.shape[-1] == r1.shape[-1] == r2.shape[-1]
    if rotary_mode == "half":
        a, b = x.chunk(2, dim=-1)
        turned = torch.cat((-b, a), dim=-1)
    else:
        assert rotary_mode == "interleave"
        turned = torch.stack((-x[..., 1::2], x[..., 0::2]), dim=-1).flatten(-2)
    return (x.float() * r1.float() + turned.float() * r2.float()).to(x.dtype)


@op
def npu_swiglu(x, dim=-1):
    left, right = x.float().chunk(2, dim=dim)
    return (F.silu(left) * right).to(x.dtype)


@op
def npu_format_cast(x, acl_format, *, customize_dtype=None, input_dtype=None):
    """The layout in memory is another; the meaning stays."""
    assert acl_format == 29
    assert x.is_contiguous()
    return x.clone()


@op
def npu_dynamic_quant(
    x, *, smooth_scales=None, group_index=None, dst_type=None, quant_mode="pertoken", dst_type_max=0.0
):
    assert x.dtype in _HALVES
    scale = (x.float().abs().amax(-1) / 127).clamp(min=1e-12)
    return (x.float() / scale[..., None]).round().clamp(-128, 127).to(torch.int8), scale


@op
def npu_quant_matmul(x1, x2, scale, *, pertoken_scale=None, output_dtype=None, **others):
    assert not [value for value in others.values() if value is not None]
    assert x1.dtype == x2.dtype == torch.int8
    assert x1.shape[1] == x2.shape[0]
    assert scale.shape == x2.shape[1:]
    assert pertoken_scale.shape == x1.shape[:1]
    dtype = {5: torch.float16, 15: torch.bfloat16}[output_dtype]
    return (x1.float() @ x2.float() * scale * pertoken_scale[:, None]).to(dtype)


@op
def npu_scatter_pa_kv_cache(
    key, value, key_cache, value_cache, slot_mapping, *, compress_lens=None, compress_seq_offsets=None, seq_lens=None,
    cache_mode="PA_NZ",
):  # fmt: skip
    assert cache_mode == "Norm"
    assert key.is_contiguous()
    assert value.is_contiguous()
    assert slot_mapping.dtype == torch.int32
    size = key_cache.shape[1]
    for cache, new in ((key_cache, key), (value_cache, value)):
        assert cache.is_contiguous()
        cache[slot_mapping // size, slot_mapping % size] = new


@op
def npu_fused_infer_attention_score(
    query, key, value, *, atten_mask=None, actual_seq_lengths=None, actual_seq_lengths_kv=None, block_table=None,
    num_heads=1, scale=1.0, input_layout="BSH", num_key_value_heads=0, sparse_mode=0, block_size=0, **others,
):  # fmt: skip
    """query [T, H, D]; key, value [blocks, block_size, Hk D]; rows end at actual_seq_lengths and have
    actual_seq_lengths_kv keys, of which the last query sees all."""
    assert (input_layout, sparse_mode) == ("TND", 3)
    assert query.dtype in _HALVES
    assert query.dtype == key.dtype == value.dtype
    assert query.shape[0] == actual_seq_lengths[-1]
    assert key.shape[1] == block_size
    assert block_size % 16 == 0 < block_size <= 512
    assert len(block_table) == len(actual_seq_lengths) == len(actual_seq_lengths_kv)
    assert torch.equal(atten_mask, torch.ones(2048, 2048, dtype=torch.bool).triu(1))
    result, start = torch.empty_like(query), 0
    for row, (end, length) in enumerate(zip(actual_seq_lengths, actual_seq_lengths_kv, strict=True)):
        blocks = block_table[row, : -(-length // block_size)].long()
        keys, values = (
            cache[blocks].flatten(0, 1)[:length].unflatten(1, (num_key_value_heads, -1)).transpose(0, 1).float()
            for cache in (key, value)
        )
        seen = torch.ones(end - start, length, dtype=torch.bool).tril(length - (end - start))
        q = query[start:end].transpose(0, 1).float()
        mixed = F.scaled_dot_product_attention(
            q[None], keys[None], values[None], attn_mask=seen, scale=scale, enable_gqa=True
        )
        result[start:end] = mixed[0].transpose(0, 1).to(query.dtype)
        start = end
    return result, torch.zeros(1)


@op
def npu_moe_init_routing_v2(
    x, expert_idx, *, active_num=-1, expert_num=-1, expert_tokens_num_type=0, expert_tokens_num_flag=False,
    quant_mode=-1, active_expert_range=(), **others,
):  # fmt: skip
    """The rows sorted by expert; where each row's copy for each of its experts went; rows of each expert."""
    assert (expert_tokens_num_type, expert_tokens_num_flag, quant_mode) == (1, True, -1)
    assert expert_idx.dtype == torch.int32
    assert active_num == expert_idx.numel()
    assert list(active_expert_range) == [0, expert_num]
    order = expert_idx.flatten().argsort(stable=True)
    counts = (expert_idx.flatten()[:, None] == torch.arange(expert_num)).sum(0)
    return x[order // expert_idx.shape[1]], order.argsort().to(torch.int32), counts, torch.zeros(1)


@op
def npu_grouped_matmul(x, weight, *, group_list=None, split_item=0, group_type=None, group_list_type=0, **others):
    assert (split_item, group_type, group_list_type) == (2, 0, 1)
    assert group_list.dtype == torch.int64
    (rows,), (weights,) = x, weight
    assert rows.dtype in _HALVES
    expert = torch.arange(len(weights)).repeat_interleave(group_list)
    made = torch.zeros(len(rows), weights.shape[2], dtype=rows.dtype)
    made[: len(expert)] = torch.einsum("rk,rkn->rn", rows[: len(expert)].float(), weights[expert].float()).to(
        rows.dtype
    )
    return [made]


@op
def npu_moe_token_unpermute(permuted_tokens, sorted_indices, probs=None, padded_mode=False, restore_shape=None):
    rows = permuted_tokens[sorted_indices.long()].unflatten(0, probs.shape)
    return (rows.float() * probs.float()[..., None]).sum(1).to(permuted_tokens.dtype)
