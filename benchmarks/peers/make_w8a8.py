"""Converts a model's folder to 8-bit products in the form that vLLM loads:
python -m benchmarks.peers.make_w8a8 FOLDER TARGET DTYPE

The compressed-tensors format: symmetric int8 weights with one scale per row, and activations quantized dynamically per
token. Embedding and head stay in DTYPE, as in vLLM's own recipes. Needs torch and safetensors.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from benchmarks.peers.byte_tokenizer import write as write_tokenizer
from safetensors import safe_open
from safetensors.torch import save_file

LARGEST = 127


def convert(folder: Path, target: Path, dtype: str) -> None:
    target.mkdir()
    for path in sorted(folder.glob("*.safetensors")):
        save_file(_quantized(path, getattr(torch, dtype)), target / path.name, metadata={"format": "pt"})
    for path in folder.glob("*.json"):
        (target / path.name).write_bytes(path.read_bytes())
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config["quantization_config"] = _description()
    (target / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
    if not (folder / "tokenizer.json").exists():
        write_tokenizer(folder, target)


def _quantized(path: Path, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    tensors: dict[str, torch.Tensor] = {}
    with safe_open(path, "pt") as file:
        names = file.keys()
        for name in names:
            tensor = file.get_tensor(name)
            if name.endswith("_proj.weight"):
                scale = tensor.float().abs().amax(1, keepdim=True).clamp(min=1e-12) / LARGEST
                rounded = (tensor.float() / scale).round().clamp(-LARGEST, LARGEST)
                tensors[name], tensors[f"{name}_scale"] = rounded.to(torch.int8), scale
            else:
                tensors[name] = tensor.to(dtype)
    return tensors


def _description() -> dict[str, Any]:
    shared = {"num_bits": 8, "type": "int", "symmetric": True}
    group = {
        "targets": ["Linear"],
        "weights": {**shared, "strategy": "channel", "dynamic": False},
        "input_activations": {**shared, "strategy": "token", "dynamic": True},
    }
    return {
        "quant_method": "compressed-tensors",
        "format": "int-quantized",
        "quantization_status": "compressed",
        "ignore": ["lm_head"],
        "config_groups": {"group_0": group},
    }


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
