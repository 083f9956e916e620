"""Folders as users have them: in several files, without weights, configured for an engine in this process."""

from __future__ import annotations

import dataclasses
import json

from safetensors.torch import save_file

from tessera.config import build_config

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 29,
    "hidden_size": 20,
    "intermediate_size": 28,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 6,
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 32,
}

INDEX = "model.safetensors.index.json"


def split(folder, shards):
    """The weights of a folder anew: one file for each of shards, and an index where there are several."""
    for file in folder.glob("model*"):
        file.unlink()
    names = [f"model-{number:05}-of-{len(shards):05}.safetensors" for number in range(1, len(shards) + 1)]
    for name, tensors in zip(names, shards, strict=True):
        save_file(tensors, folder / name)
    if len(shards) > 1:
        where = {tensor: name for name, tensors in zip(names, shards, strict=True) for tensor in tensors}
        (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": where}))


def config_only(folder, **differs):
    """A folder with config.json and nothing else; a field that is None is left out."""
    config = {name: value for name, value in {**CONFIG, **differs}.items() if value is not None}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def dummy_config(folder, **flags):
    """For an engine in this process with random weights."""
    given = {
        "load_format": "dummy",
        "skip_tokenizer_init": True,
        "platform": "tessera.testing:ReferencePlatform",
        "kv_cache_memory_bytes": 2**20,
        "max_num_seqs": 2,
        **flags,
    }
    return dataclasses.replace(build_config(model=str(folder), **given), embedded=True)
