"""Models with the weights of LoRA adapters merged in, as peft does it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from safetensors.torch import load_file, save_file

from tessera.config.lora import SETTINGS, WEIGHTS, tensor_name


def save_merged(model: Path, adapter: Path, folder: Path) -> Path:
    """W + scale B A."""
    shutil.copytree(model, folder)
    said = json.loads((adapter / SETTINGS).read_text())
    scale = said["lora_alpha"] / (said["r"] ** 0.5 if said.get("use_rslora") else said["r"])
    weights, added = load_file(model / "model.safetensors"), load_file(adapter / WEIGHTS)
    for name in weights:
        a, b = (tensor_name(name.removesuffix(".weight"), half) for half in "AB")
        if a in added:
            weights[name] = weights[name] + scale * added[b] @ added[a]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder
