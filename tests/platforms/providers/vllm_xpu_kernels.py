"""Stands in for vllm_xpu_kernels._xpu_C: importing it registers the op with the published wheel's schema, so torch
checks each call against that."""

from __future__ import annotations

import json
from pathlib import Path

import torch

_FILE = Path(__file__).parents[3] / "platforms/xpu/tests/vllm_xpu_kernels.json"
SCHEMAS = json.loads(_FILE.read_text(encoding="utf-8"))["ops"]["_xpu_C"]

library = torch.library.Library("_xpu_C", "DEF")
library.define(next(schema for schema in SCHEMAS if schema.startswith("int4_gemm_w4a16(")))


@torch.library.impl(library, "int4_gemm_w4a16", "CPU")
def int4_gemm_w4a16(A, B, bias, B_scale, B_zp, group_size, g_idx):
    """A [m, k], B [k / 8, n] int32 column by column, B_scale [k / group, n], B_zp [1] int8."""
    assert A.is_contiguous()
    assert B_scale.is_contiguous()
    assert B.dtype == torch.int32
    assert B.stride(0) == 1, "Int4 weight must be in NT format!"
    assert (B_zp.dtype, B_zp.shape, g_idx) == (torch.int8, (1,), None)
    numbers = B[:, None] >> 4 * torch.arange(8, dtype=torch.int32)[None, :, None] & 15
    weight = (numbers.flatten(0, 1) - B_zp).float() * B_scale.float().repeat_interleave(group_size, 0)
    made = A.float() @ weight
    return (made if bias is None else made + bias.float()).to(A.dtype)
