"""Writes a copy of a model with the entries of every matrix shuffled, which destroys its knowledge.

    python -m tools.demo_model.shuffle --model core/tessera/demo --out build/shuffled

The copy answers the same questions no better than chance, which shows that nothing outside the weights knows an answer.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

SEED = 0
WEIGHTS = "model.safetensors"


def shuffle(model: Path, out: Path, seed: int = SEED) -> None:
    """Copies the folder with the entries of its matrices permuted. The same seed gives the same copy."""
    out.mkdir(parents=True, exist_ok=True)
    for file in model.glob("*.json"):
        shutil.copyfile(file, out / file.name)
    generator = torch.Generator().manual_seed(seed)
    tensors = load_file(model / WEIGHTS)
    for name, tensor in tensors.items():
        if tensor.ndim > 1:
            order = torch.randperm(tensor.numel(), generator=generator)
            tensors[name] = tensor.flatten()[order].view_as(tensor)
    save_file(tensors, out / WEIGHTS, metadata={"format": "pt"})


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=SEED)
    arguments = parser.parse_args()
    shuffle(arguments.model, arguments.out, arguments.seed)


if __name__ == "__main__":
    main()
