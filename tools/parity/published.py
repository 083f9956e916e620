"""Checkpoints in the form in which they are published, where transformers saves another."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

_CONVOLUTION = ".linear_attn.q_conv1d.weight"
_NORM, _PUBLISHED_NORM = "feedforward_layer_norm", "post_attention_layernorm"


def as_olmo_hybrid(folder: Path) -> None:
    """transformers divides what it has joined of three convolutions into equal parts, and gives the norms of attention
    layers the name that those beside a delta net have."""
    file = folder / "model.safetensors"
    tensors = load_file(file)
    for name in [name for name in tensors if name.endswith(_CONVOLUTION)]:
        layer = name.removesuffix("q_conv1d.weight")
        sizes = [len(tensors[f"{layer}{part}_proj.weight"]) for part in "qkv"]
        joined = torch.cat([tensors[f"{layer}{part}_conv1d.weight"] for part in "qkv"])
        for part, own in zip("qkv", torch.split(joined, sizes), strict=True):
            tensors[f"{layer}{part}_conv1d.weight"] = own.contiguous()
    for name in [name for name in tensors if name.endswith(".self_attn.q_norm.weight")]:
        layer = name.removesuffix("self_attn.q_norm.weight")
        tensors[f"{layer}{_PUBLISHED_NORM}.weight"] = tensors.pop(f"{layer}{_NORM}.weight")
    save_file(tensors, file, {"format": "pt"})
