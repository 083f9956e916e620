"""Models in peers' own formats: conversion, and bits per weight."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from benchmarks.limits import parameters
from benchmarks.running import ROOT, EngineError
from benchmarks.tuning import Conversion

WEIGHTS = ("*.safetensors", "openvino_model.bin")  # in a folder


def convert(chosen: Conversion, model: Path, folder: Path, python: str, variables: Mapping[str, str]) -> Path:
    """The converted model in the folder; the peer's python creates it if it does not exist. Raises EngineError."""
    target = folder / chosen.name
    if target.exists():
        return target
    source = model if chosen.source is None else convert(chosen.source, model, folder, python, variables)
    folder.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f"{target.name}.part")
    _remove(partial)  # left by an interrupted conversion
    command = [python, "-m", chosen.module, str(source), str(partial), chosen.form]
    done = subprocess.run(command, cwd=ROOT, env=dict(variables), check=False, capture_output=True, text=True)
    if done.returncode != 0:
        raise EngineError((done.stderr.strip().splitlines() or ["it says nothing"])[-1])
    partial.rename(target)
    return target


def file_bits(weights: Path, model: Path) -> float:
    """Bits of the loaded files per number in the model's checkpoint."""
    files = [file for pattern in WEIGHTS for file in weights.glob(pattern)] if weights.is_dir() else [weights]
    return 8 * sum(file.stat().st_size for file in files) / parameters(model)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
