"""A tiny Llama as a checkpoint on disk, which any runner can load; the same weights every time."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

VOCAB = 101
_HIDDEN, _WIDE, _HEADS, _KV_HEADS, _HEAD_DIM, _LAYERS = 72, 88, 6, 2, 12, 2
_SPREAD = 0.12  # of weights: wide enough for answers to differ


def save_tiny_model(folder: Path, positions: int = 2048) -> None:
    """positions: tokens that prompt and answer may have."""
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": VOCAB,
        "hidden_size": _HIDDEN,
        "intermediate_size": _WIDE,
        "num_hidden_layers": _LAYERS,
        "num_attention_heads": _HEADS,
        "num_key_value_heads": _KV_HEADS,
        "head_dim": _HEAD_DIM,
        "max_position_embeddings": positions,
        "tie_word_embeddings": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
        "torch_dtype": "float32",
    }
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    save_file(_weights(), folder / "model.safetensors")


def _weights() -> dict[str, Tensor]:
    random = torch.Generator().manual_seed(20)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=random) * _SPREAD

    weights = {"model.embed_tokens.weight": drawn(VOCAB, _HIDDEN), "lm_head.weight": drawn(VOCAB, _HIDDEN)}
    for layer in range(_LAYERS):
        name = f"model.layers.{layer}"
        for part, heads in (("q", _HEADS), ("k", _KV_HEADS), ("v", _KV_HEADS)):
            weights[f"{name}.self_attn.{part}_proj.weight"] = drawn(heads * _HEAD_DIM, _HIDDEN)
        weights[f"{name}.self_attn.o_proj.weight"] = drawn(_HIDDEN, _HEADS * _HEAD_DIM)
        for part in ("gate", "up"):
            weights[f"{name}.mlp.{part}_proj.weight"] = drawn(_WIDE, _HIDDEN)
        weights[f"{name}.mlp.down_proj.weight"] = drawn(_HIDDEN, _WIDE)
        for norm in ("input_layernorm", "post_attention_layernorm"):
            weights[f"{name}.{norm}.weight"] = torch.ones(_HIDDEN)
    return weights | {"model.norm.weight": torch.ones(_HIDDEN)}
