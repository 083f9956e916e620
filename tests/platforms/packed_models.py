"""Checkpoints with quantized weights, stored as compressed-tensors or as fp8 does, and the same weights unpacked."""

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
BLOCKS = {**FP8, "strategy": "block", "block_structure": [16, 12]}
GROUPS = {**TOKEN, "type": "float", "strategy": "group", "group_size": 12}
KINDS: Mapping[str, tuple[str, Mapping[str, Any], Mapping[str, Any] | None]] = {
    "w8a8": ("int-quantized", INT8, TOKEN),
    "w4a16": ("pack-quantized", INT4, None),
    "w4a16-asymmetric": ("pack-quantized", {**INT4, "symmetric": False}, None),
    "w4a16-channel": ("pack-quantized", {**INT4, "strategy": "channel"}, None),
    "w8a16": ("int-quantized", INT8, None),
    "fp8-weights": ("float-quantized", FP8, None),
    "fp8": ("float-quantized", FP8, {**TOKEN, "type": "float"}),
    "fp8-block-weights": ("float-quantized", BLOCKS, None),
    "fp8-block": ("float-quantized", BLOCKS, GROUPS),
}
"""format, weights and input_activations of quantization_config."""
FP8_KINDS: Mapping[str, Mapping[str, Any]] = {
    "blocks": {"activation_scheme": "dynamic", "weight_block_size": [16, 12]},
    "wide-blocks": {"activation_scheme": "dynamic", "weight_block_size": [32, 64]},
    "dynamic": {"activation_scheme": "dynamic"},
    "static": {"activation_scheme": "static"},
}
"""quantization_config of the format fp8."""
IGNORED = ("lm_head", "re:.*block_sparse_moe.gate$", "re:.*embed.*")


def save_packed(
    plain: Path,
    target: Path,
    kind: str,
    *,
    group: int = 8,
    ignore: Sequence[str] = ("lm_head",),
    kv: Mapping[str, float] | None = None,
) -> tuple[Path, Path]:
    """Two folders: the model with quantized projections, and with the weights that these stand for. ignore: further
    matrices that are not quantized, beside routers and the embedding. kv: the scales of keys and values in fp8, by the
    last part of their tensors' names within an attention layer."""
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
    if kv is not None:
        said["kv_cache_scheme"] = {**FP8, "strategy": "tensor", "dynamic": False}
        layers = {name.rpartition(".o_proj.")[0] for name in meant if ".o_proj." in name}
        packed |= {f"{layer}.{name}": torch.tensor([scale]) for layer in layers for name, scale in kv.items()}
    return _saved(plain, target / f"{plain.name}-{kind}", packed, meant, said)


def save_fp8(plain: Path, target: Path, kind: str) -> tuple[Path, Path]:
    """Two folders, as save_packed does, in the format fp8. Static scales of inputs differ from layer to layer."""
    said = {"quant_method": "fp8", "fmt": "e4m3", **FP8_KINDS[kind]}
    packed, meant, left = {}, {}, []
    for number, (name, tensor) in enumerate(load_file(plain / "model.safetensors").items()):
        module = name.removesuffix(".weight")
        if tensor.dim() < 2 or "embed" in module or module == "lm_head" or module.endswith("gate"):
            packed[name] = meant[name] = tensor
            left.append(module)
            continue
        if "weight_block_size" in said:
            packed[name], scale, meant[name] = in_blocks(tensor, said["weight_block_size"])
            packed[f"{module}.weight_scale_inv"] = scale
            continue
        scale = tensor.abs().max() / 448
        packed[name], packed[f"{module}.weight_scale"] = (tensor / scale).to(torch.float8_e4m3fn), scale
        meant[name] = packed[name].float() * scale
        if said["activation_scheme"] == "static":
            packed[f"{module}.input_scale"] = torch.tensor([0.01 + 0.001 * (number % 3)])
    return _saved(plain, target / f"{plain.name}-{kind}", packed, meant, {**said, "modules_to_not_convert": left})


def save_words(plain: Path, target: Path, method: str, *, group: int, **differs: Any) -> tuple[Path, Path]:
    """Two folders, as save_packed does, in groups with zero points as gptq or awq packs them. Rows are multiples of
    8. differs: of quantization_config."""
    packed, meant = {}, {}
    for name, tensor in load_file(plain / "model.safetensors").items():
        module = name.removesuffix(".weight")
        if tensor.dim() < 2 or "embed" in module or module == "lm_head" or module.endswith("moe.gate"):
            packed[name] = meant[name] = tensor
            continue
        groups = tensor.view(len(tensor), -1, group)
        least, most = groups.amin(-1).clamp(max=0), groups.amax(-1).clamp(min=0)
        scale = ((most - least) / 15).half().float()
        zero = (-least / scale).round().clamp(1, 15)
        elements = ((groups / scale[..., None]).round() + zero[..., None]).clamp(0, 15)
        meant[name] = ((elements - zero[..., None]) * scale[..., None]).view_as(tensor)
        elements = elements.view_as(tensor)
        order = [8 * word + at for word in range(len(tensor) // 8) for at in (0, 2, 4, 6, 1, 3, 5, 7)]
        qweight, qzeros = words(elements, 4).T, words(zero.T - 1, 4)
        if method == "awq":
            qweight, qzeros = words(elements.T[:, order], 4), words(zero.T[:, order], 4)
        packed |= {f"{module}.qweight": qweight, f"{module}.qzeros": qzeros, f"{module}.scales": scale.T.half()}
    said = {"quant_method": method, "bits": 4, "group_size": group, "sym": False, **differs}
    return _saved(plain, target / f"{plain.name}-{method}", packed, meant, said)


def in_blocks(weight: Tensor, block: Sequence[int]) -> tuple[Tensor, Tensor, Tensor]:
    """The elements of a weight [n, k] in fp8, the scales of its blocks, and the weight that they mean."""
    (n, k), (rows, columns) = weight.shape, block
    scale, meant = torch.empty(-(-n // rows), -(-k // columns)), torch.empty(n, k)
    elements = torch.empty(n, k, dtype=torch.float8_e4m3fn)
    for i in range(len(scale)):
        for j in range(scale.shape[1]):
            some = slice(i * rows, (i + 1) * rows), slice(j * columns, (j + 1) * columns)
            scale[i, j] = weight[some].abs().max() / 448
            elements[some] = (weight[some] / scale[i, j]).to(elements.dtype)
            meant[some] = elements[some].float() * scale[i, j]
    return elements, scale, meant


def _saved(
    plain: Path, folder: Path, packed: Mapping[str, Tensor], meant: Mapping[str, Tensor], said: Mapping[str, Any]
) -> tuple[Path, Path]:
    """said: quantization_config of the packed model."""
    folders = folder, folder.with_name(f"{folder.name}-meant")
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
    if said["strategy"] == "block":
        elements, scale, meant = in_blocks(weight, said["block_structure"])
        return {"weight": elements, "weight_scale": scale}, meant
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
