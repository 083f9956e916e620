"""Checkpoints in the form in which they are published, where transformers saves another."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
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


def with_beginnings(names: Mapping[str, str]) -> Callable[[Path], None]:
    """Gives tensors' names other beginnings. names: those that transformers saves to those of published files."""

    def publish(folder: Path) -> None:
        file = folder / "model.safetensors"
        tensors = {_begun(name, names): tensor for name, tensor in load_file(file).items()}
        save_file(tensors, file, {"format": "pt"})

    return publish


def _begun(name: str, names: Mapping[str, str]) -> str:
    old = next((old for old in names if name.startswith(old)), "")
    return names.get(old, "") + name.removeprefix(old)


def as_kimi_linear(folder: Path) -> None:
    """transformers gives the weights of dense layers the name that the experts of others have, and config.json other
    fields."""
    file = folder / "model.safetensors"
    tensors = load_file(file)
    dense = [name for name in tensors if ".block_sparse_moe.gate_proj." in name]
    for layer in [name.partition("block_sparse_moe.")[0] for name in dense]:
        for part in ("gate_proj", "up_proj", "down_proj"):
            tensors[f"{layer}mlp.{part}.weight"] = tensors.pop(f"{layer}block_sparse_moe.{part}.weight")
    save_file(tensors, file, {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    kinds = config.pop("layer_types")
    numbers = {kind: [number + 1 for number, own in enumerate(kinds) if own == kind] for kind in kinds}
    config["linear_attn_config"] = {
        "full_attn_layers": numbers["full_attention"],
        "kda_layers": numbers["linear_attention"],
        "num_heads": config.pop("linear_num_heads"),
        "head_dim": config.pop("linear_head_dim"),
        "short_conv_kernel_size": config.pop("linear_conv_kernel_dim"),
    }
    config["first_k_dense_replace"] = config.pop("mlp_layer_types").count("dense")
    (folder / "config.json").write_text(json.dumps(config))


def as_bloom(folder: Path) -> None:
    """Published files are of the model without its head, and name its width otherwise."""
    file = folder / "model.safetensors"
    tensors = {name.removeprefix("transformer."): tensor for name, tensor in load_file(file).items()}
    save_file(tensors, file, {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config["n_embed"] = config.pop("hidden_size")
    (folder / "config.json").write_text(json.dumps(config))


def as_zamba(folder: Path) -> None:
    """A file may have the shared transformer in another of the layers that call it than transformers saves it in, and a
    configuration may say nothing of layers but their period."""
    file = folder / "model.safetensors"
    config = json.loads((folder / "config.json").read_text())
    callers = [number for number, kind in enumerate(config.pop("layers_block_type")) if kind == "hybrid"]
    first, last = (f"model.layers.{number}.shared_transf." for number in (callers[0], callers[-1]))
    assert first != last
    tensors = {name.replace(first, last): tensor for name, tensor in load_file(file).items()}
    save_file(tensors, file, {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config))


def as_longcat_flash(folder: Path) -> None:
    """transformers saves weights for experts that have none."""
    file = folder / "model.safetensors"
    routed = json.loads((folder / "config.json").read_text())["n_routed_experts"]
    tensors = {name: tensor for name, tensor in load_file(file).items() if _expert(name) < routed}
    save_file(tensors, file, {"format": "pt"})


def _expert(name: str) -> int:
    """The number of the expert that a tensor is of; -1 for others."""
    _, _, rest = name.partition(".experts.")
    return int(rest.partition(".")[0] or -1)


def with_text_beside(folder: Path) -> None:
    """A configuration may have the text model's fields beside those of the whole, which count."""
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config.pop("text_config"), **config}))
