"""The models that are measured, as the sizes in their config.json; and what a token costs in them: bytes read, and
arithmetic."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

Sizes = Mapping[str, Any]
ITEM = 2  # bytes of a bfloat16

_COMMON: Sizes = {"dtype": "bfloat16", "hidden_act": "silu", "bos_token_id": 0, "eos_token_id": 1}
LLAMA_8B: Sizes = {
    **_COMMON,
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 128_256,
    "hidden_size": 4096,
    "intermediate_size": 14_336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 131_072,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500_000.0,
    "rope_scaling": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
    "tie_word_embeddings": False,
}
QWEN_06B: Sizes = {
    **_COMMON,
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "vocab_size": 151_936,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 40_960,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1_000_000.0,
    "tie_word_embeddings": True,
}
_TINY: Sizes = {
    "vocab_size": 101,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 128,
}
"""For rehearsals: what differs."""


def tiny(sizes: Sizes) -> Sizes:
    return {**sizes, **_TINY}


def layer_tensors(sizes: Sizes) -> dict[str, tuple[int, ...]]:
    """Shapes of a layer's weights, by the checkpoint's names."""
    hidden, inner, dim = sizes["hidden_size"], sizes["intermediate_size"], sizes["head_dim"]
    q, kv = sizes["num_attention_heads"] * dim, sizes["num_key_value_heads"] * dim
    found: dict[str, tuple[int, ...]] = {
        "self_attn.q_proj": (q, hidden),
        "self_attn.k_proj": (kv, hidden),
        "self_attn.v_proj": (kv, hidden),
        "self_attn.o_proj": (hidden, q),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
        "input_layernorm": (hidden,),
        "post_attention_layernorm": (hidden,),
    }
    if sizes["model_type"] == "qwen3":
        found |= {"self_attn.q_norm": (dim,), "self_attn.k_norm": (dim,)}
    return {f"{name}.weight": shape for name, shape in found.items()}


def outer_tensors(sizes: Sizes) -> dict[str, tuple[int, ...]]:
    """Shapes of the weights outside the layers."""
    rows = sizes["vocab_size"], sizes["hidden_size"]
    found: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": rows, "model.norm.weight": rows[1:]}
    return found if sizes["tie_word_embeddings"] else {**found, "lm_head.weight": rows}


def shards(sizes: Sizes) -> Iterator[dict[str, tuple[int, ...]]]:
    """The whole checkpoint, file by file."""
    yield outer_tensors(sizes)
    for layer in range(sizes["num_hidden_layers"]):
        yield {f"model.layers.{layer}.{name}": shape for name, shape in layer_tensors(sizes).items()}


def parameters(sizes: Sizes) -> int:
    return sum(math.prod(shape) for shard in shards(sizes) for shape in shard.values())


def token_bytes(sizes: Sizes, context: float) -> float:
    """Bytes that a decode step of one row must read: all weights but the embedding's rows, of which it needs one, and
    the keys and values of its context. A tied embedding is the head too, and is read whole."""
    embedding = 0 if sizes["tie_word_embeddings"] else math.prod(outer_tensors(sizes)["model.embed_tokens.weight"])
    return ITEM * (parameters(sizes) - embedding) + context * kv_bytes(sizes)


def kv_bytes(sizes: Sizes) -> int:
    """Bytes of a token's keys and values in all layers."""
    return 2 * ITEM * int(sizes["num_hidden_layers"] * sizes["num_key_value_heads"] * sizes["head_dim"])


def prompt_flops(sizes: Sizes, prompt: int) -> float:
    """Multiplications and additions of a prompt's prefill: the matrices for each token, the head for the last one, and
    causal attention, where a query sees the keys before it and its own."""
    matrices = sum(math.prod(shape) for shape in layer_tensors(sizes).values() if len(shape) == 2)
    layers = int(sizes["num_hidden_layers"])
    head = 2 * int(sizes["vocab_size"]) * int(sizes["hidden_size"])
    return layers * (2 * matrices * prompt + attention_flops(sizes, prompt)) + head


def attention_flops(sizes: Sizes, prompt: int) -> float:
    """Of one layer's causal attention over a prompt: two products for each pair of a query and a key that it sees."""
    return 4 * int(sizes["num_attention_heads"]) * int(sizes["head_dim"]) * prompt * (prompt + 1) / 2
