"""Stands in for aiter.ops.gemm_op_a8w8: importing it registers the op with torch, by a schema made of the function, as
the package does."""

from __future__ import annotations

import torch


def gemm_a8w8(
    XQ: torch.Tensor,
    WQ: torch.Tensor,
    x_scale: torch.Tensor,
    w_scale: torch.Tensor,
    bias: torch.Tensor | None = None,
    dtype: torch.dtype = torch.bfloat16,
    splitK: int | None = None,
) -> torch.Tensor:
    """XQ [m, k], WQ [n, k], x_scale [m, 1], w_scale [n, 1], bias [n] -> [m, n]"""
    tokens, inputs = XQ.shape
    assert XQ.dtype == WQ.dtype in (torch.int8, torch.float8_e4m3fn, torch.float8_e4m3fnuz)
    assert x_scale.dtype == w_scale.dtype == torch.float32, "Scales should have the same dtype!"
    assert (x_scale.shape, w_scale.shape) == ((tokens, 1), (len(WQ), 1))
    assert all(tensor.is_contiguous() for tensor in (XQ, WQ, x_scale, w_scale)), "only addresses are passed on"
    assert tokens > 0
    assert (inputs % 256, len(WQ) % 8, splitK) == (0, 0, None), "This GEMM is not supported!"
    assert bias is None or (bias.dtype, bias.shape) == (dtype, (len(WQ),))
    made = (XQ.double() @ WQ.double().T) * x_scale * w_scale.T
    return (made if bias is None else made + bias).to(dtype)


library = torch.library.Library("aiter", "DEF")
library.define(f"gemm_a8w8{torch.library.infer_schema(gemm_a8w8, mutates_args='unknown')}")
library.impl("gemm_a8w8", gemm_a8w8, "CPU")
