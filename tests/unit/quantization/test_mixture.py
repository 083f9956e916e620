"""What --quantization int4 rounds each weight to, where a platform multiplies with blocks."""

from __future__ import annotations

import pytest

from tessera.platform.quantization import Part
from tessera.quantization.mixture import block_schemes


def types(name, k):
    return [scheme.weight.dtype for scheme in block_schemes(Part(f"{name}.weight", (8, k)), k)]


@pytest.mark.parametrize(
    ("name", "wide", "narrow"),
    [
        ("model.layers.0.self_attn.q_proj", ["q4_k", "q5_0"], ["q5_0"]),
        ("model.layers.0.mlp.gate_proj", ["q4_k", "q5_0"], ["q5_0"]),
        ("model.layers.0.self_attn.v_proj", ["q6_k", "q8_0"], ["q8_0"]),
        ("model.layers.0.self_attn.qkv_proj", ["q5_k", "q5_1"], ["q5_1"]),
        ("model.layers.0.mlp.down_proj", ["q5_k", "q5_1"], ["q5_1"]),
        ("transformer.h.0.mlp.c_proj", ["q5_k", "q5_1"], ["q5_1"]),
        ("model.embed_tokens", ["q6_k", "q8_0"], ["q8_0"]),
        ("lm_head", ["q6_k", "q8_0"], ["q8_0"]),
    ],
)
def test_sensitive_weights_have_more_bits(name, wide, narrow):
    assert types(name, 512) == wide
    assert types(name, 96) == narrow
    assert types(name, 48) == []
