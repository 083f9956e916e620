"""GGUF files of a tiny text model with a processor's vocabulary, and of the tower beside it, without most weights."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from tests.processor_folders import FOLDERS

WIDTH = 72
TOWER_WIDTH = 36
_TEXT = {
    "context_length": 96,
    "embedding_length": WIDTH,
    "feed_forward_length": 84,
    "block_count": 2,
    "attention.head_count": 6,
    "attention.head_count_kv": 2,
    "attention.key_length": 12,
}
_TOWER = {
    "embedding_length": TOWER_WIDTH,
    "feed_forward_length": 44,
    "block_count": 2,
    "attention.head_count": 3,
    "image_size": 28,
    "patch_size": 7,
}
_LAST = {"mm.2.weight": (WIDTH, 44)}
_UP = {"v.blk.0.ffn_up.weight": (144, TOWER_WIDTH)}


@dataclass(frozen=True)
class TowerFile:
    """A kind of tower."""

    # clip.projector_type
    projector: str
    # general.architecture of its text model
    architecture: str
    # keys below clip.vision, besides those of all
    settings: Mapping[str, int] = field(default_factory=dict)
    # by name, those without which it does not say what it is
    tensors: Mapping[str, tuple[int, ...]] = field(default_factory=lambda: _LAST)


TOWERS: Mapping[str, TowerFile] = {
    "gemma3": TowerFile(
        "gemma3", "gemma3", {"projector.scale_factor": 2}, {"mm.input_projection.weight": (TOWER_WIDTH, WIDTH)}
    ),
    "idefics3": TowerFile(
        "idefics3",
        "llama",
        {"projector.scale_factor": 2, "preproc_image_size": 112},
        {"mm.model.fc.weight": (WIDTH, 4 * TOWER_WIDTH)},
    ),
    "internvl": TowerFile(
        "internvl",
        "qwen2",
        {"projector.scale_factor": 2, "preproc_min_tiles": 1, "preproc_max_tiles": 4},
        {"mm.model.mlp.3.weight": (WIDTH, WIDTH)},
    ),
    "llava": TowerFile("mlp", "llama", tensors={**_LAST, **_UP}),
    "pixtral": TowerFile("pixtral", "llama", {"image_size": 64, "patch_size": 4, "spatial_merge_size": 2}),
    "qwen2_vl": TowerFile(
        "qwen2vl_merger",
        "qwen2vl",
        {"patch_size": 4, "spatial_merge_size": 2, "image_min_pixels": 256, "image_max_pixels": 4096},
        {**_LAST, **_UP},
    ),
}
"""By the folder of tests/processor_folders.py whose processor it has."""


def write_text(path: Path, architecture: str, folder: Path | None = None) -> Path:
    """folder: whose tokenizer the file has."""
    writer = gguf.GGUFWriter(path, architecture)
    for name, value in _TEXT.items():
        writer.add_uint32(f"{architecture}.{name}", value)
    writer.add_layer_norm_rms_eps(1e-5)
    if folder is not None:
        tokenizer = (folder / "tokenizer.json").read_text()
        content = json.loads(tokenizer)
        ids = {**content["model"]["vocab"], **{token["content"]: token["id"] for token in content["added_tokens"]}}
        writer.add_tokenizer_model("gpt2")
        writer.add_token_list(sorted(ids, key=lambda token: ids[token]))
        writer.add_string("tokenizer.huggingface.json", tokenizer)
        writer.add_eos_token_id(ids["</s>"])
    return _finished(writer, path, {"token_embd.weight": (300, WIDTH), "output_norm.weight": (WIDTH,)})


def write_tower(path: Path, tower: TowerFile, other: Mapping[str, tuple[int, ...]] | None = None) -> Path:
    """other: further tensors."""
    writer = gguf.GGUFWriter(path, "clip")
    writer.add_clip_has_vision_encoder(True)
    writer.add_clip_projector_type(tower.projector)
    for name, value in {**_TOWER, **tower.settings}.items():
        writer.add_uint32(f"clip.vision.{name}", value)
    writer.add_vision_attention_layernorm_eps(1e-6)
    writer.add_vision_image_mean([0.4, 0.5, 0.6])
    writer.add_vision_image_std([0.2, 0.3, 0.25])
    return _finished(writer, path, {**tower.tensors, **(other or {})})


def _finished(writer: Any, path: Path, tensors: Mapping[str, tuple[int, ...]]) -> Path:
    for name, shape in tensors.items():
        writer.add_tensor(name, np.zeros(shape, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def both(folder: Path, kind: str) -> tuple[Path, Path]:
    """The files of a text model with the vocabulary of a kind of processor, and of its tower."""
    text = write_text(folder / "model.gguf", TOWERS[kind].architecture, FOLDERS[kind].write(folder / "processor"))
    return text, write_tower(folder / "mmproj-model.gguf", TOWERS[kind])
