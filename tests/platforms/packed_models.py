"""Checkpoints with quantized weights, stored as compressed-tensors does, and the same weights unpacked."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tessera.quantization.rounding import quantised
from tessera.quantization.schemes import candidates

TOKEN = {"num_bits": 8, "type": "int", "strategy": "token", "symmetric": True, "dynamic": True}
INT8 = {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": True}
INT4 = {"num_bits": 4, "type": "int", "strategy": "group", "symmetric": True}
FP8 = {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True}
KINDS: Mapping[str, tuple[str, Mapping[str, Any], Mapping[str, Any] | None]] = {
    "w8a8": ("int-quantized", INT8, TOKEN),
    "w4a16": ("pack-quantized", INT4, None),
    "w4a16-asymmetric": ("pack-quantized", {**INT4, "symmetric": False}, None),
    "w4a16-channel": ("pack-quantized", {**INT4, "strategy": "channel"}, None),
    "w8a16": ("int-quantized", INT8, None),
    "fp8-weights": ("float-quantized", FP8, None),
    "fp8": ("float-quantized", FP8, {**TOKEN, "type": "float"}),
}
"""format, weights and input_activations of quantization_config."""
IGNORED = ("lm_head", "re:.*block_sparse_moe.gate$", "re:.*embed.*")


def save_packed(
    plain: Path, target: Path, kind: str, *, group: int = 8, ignore: Sequence[str] = ("lm_head",)
) -> tuple[Path, Path]:
    """Two folders: the model with quantized projections, and with the weights that these stand for. ignore: further
    matrices that are not quantized, beside routers and the embedding."""
    form, weights, activations = KINDS[kind]
    weights = {**weights, "group_size": group} if weights["strategy"] == "group" else dict(weights)
    packed, meant = {}, {}
    for name, tensor in load_file(plain / "model.safetensors").items():
        module = name.removesuffix(".weight")
        kept = module in ignore or "embed" in module or module.endswith("moe.gate")
        if tensor.dim() < 2 or kept:
            packed[name] = meant[name] = tensor
            continue
        stored, meant[name] = stored_as(tensor, weights)
        packed |= {f"{module}.{part}": one for part, one in stored.items()}
    said = {
        "quant_method": "compressed-tensors",
        "format": form,
        "quantization_status": "compressed",
        "ignore": [*ignore, *IGNORED[1:]],
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights, "input_activations": activations}},
    }
    folders = target / f"{plain.name}-{kind}", target / f"{plain.name}-{kind}-meant"
    for folder, tensors, differs in zip(folders, (packed, meant), ({"quantization_config": said}, {}), strict=True):
        folder.mkdir(parents=True)
        for file in plain.iterdir():
            if file.suffix == ".json":
                shutil.copy(file, folder)
        config = {**json.loads((plain / "config.json").read_text()), **differs}
        (folder / "config.json").write_text(json.dumps(config))
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
    return folders


def stored_as(weight: Tensor, said: Mapping[str, Any]) -> tuple[dict[str, Tensor], Tensor]:
    """The tensors of a weight [n, k] by the ends of their names, and the weight that they mean. said: `weights` in
    quantization_config."""
    n, k = weight.shape
    if said["type"] == "int" and said["num_bits"] == 8:
        parts = quantised(weight, candidates("int8", k)[0])
        elements, scale = parts["weight"], parts["scale"][:, None]
        return {"weight": elements, "weight_scale": scale}, elements * scale
    if said["type"] == "float":
        scale = weight.abs().amax(1, keepdim=True) / 448
        elements = (weight / scale).to(torch.float8_e4m3fn)
        return {"weight": elements, "weight_scale": scale}, elements.float() * scale
    groups = weight.view(n, -1, said.get("group_size", k))
    if said["symmetric"]:
        scale, zero = groups.abs().amax(-1) / 7.5, torch.zeros(groups.shape[:2])
    else:
        least, most = groups.amin(-1).clamp(max=0), groups.amax(-1).clamp(min=0)
        scale = (most - least) / 15
        zero = (-8 - least / scale).round().clamp(-8, 7)
    elements = ((groups / scale[..., None]).round() + zero[..., None]).clamp(-8, 7)
    meant = ((elements - zero[..., None]) * scale[..., None]).view(n, k)
    stored = {
        "weight_packed": words(elements.view(n, k).long() + 8, 4),
        "weight_scale": scale,
        "weight_shape": torch.tensor([n, k]),
    }
    if not said["symmetric"]:
        stored["weight_zero_point"] = words(zero.long().T + 8, 4).T
    return stored, meant


def words(numbers: Tensor, bits: int) -> Tensor:
    """[n, m] of 0 to 2**bits - 1 -> int32 [n, m / (32 / bits)], packed from the lowest bits on."""
    each = 32 // bits
    found = torch.zeros(len(numbers), -(-numbers.shape[1] // each), dtype=torch.int64)
    for at in range(numbers.shape[1]):
        found[:, at // each] |= numbers[:, at].long() << at % each * bits
    return torch.where(found >= 1 << 31, found - (1 << 32), found).int()
