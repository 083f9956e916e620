"""Random weights in files, as a model's checkpoint has them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import save_file

from benchmarks.gpu.models import ITEM, Sizes, parameters, shards

SPREAD = 0.02
ROOM = 1.2  # times the checkpoint's size that must be free


class NoRoomError(Exception):
    """The disk has too little room; the message says how much is needed."""


def written(folder: Path, sizes: Sizes, device: torch.device) -> Path:
    """Writes the checkpoint into the model's folder, in bfloat16, unless it is there. device: draws the numbers. Raises
    NoRoomError."""
    if any(folder.glob("*.safetensors")):
        return folder
    needed, free = ROOM * ITEM * parameters(sizes), shutil.disk_usage(folder).free
    if free < needed:
        raise NoRoomError(f"the checkpoint needs {needed / 1e9:.0f} GB, and {folder} has {free / 1e9:.0f} GB")
    places: dict[str, str] = {}
    for number, shapes in enumerate(shards(sizes)):
        file = f"model-{number:05}.safetensors"
        places |= dict.fromkeys(shapes, file)
        tensors = {
            name: (SPREAD * torch.randn(shape, dtype=torch.bfloat16, device=device)).cpu()
            if len(shape) == 2
            else torch.ones(shape, dtype=torch.bfloat16)
            for name, shape in shapes.items()
        }
        save_file(tensors, folder / file, {"format": "pt"})
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}), encoding="utf-8")
    return folder
