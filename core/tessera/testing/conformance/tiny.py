"""Tiny checkpoints of random weights: config.json and the tensors that the reference would read of such a model."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from safetensors.torch import save_file

from tessera.config import build_config
from tessera.layers.build import TENSOR_GROUP
from tessera.layers.weights import Part
from tessera.loader.checkpoint import Dummy
from tessera.platform.collectives import Alone
from tessera.reference.attention import ReferenceAttention
from tessera.reference.dtypes import torch_dtype
from tessera.runner.services import Services
from tessera.testing.conformance.target import OWN
from tessera.testing.reference import ReferencePlatform, host_device

VOCAB = 101
_SIZES: Mapping[str, Any] = MappingProxyType(
    {
        "vocab_size": VOCAB,
        "hidden_size": 72,
        "intermediate_size": 88,
        "num_hidden_layers": 2,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": 12,
        "tie_word_embeddings": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
        "rms_norm_eps": 1e-6,
    }
)
FAMILIES: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "llama": {"architectures": ["LlamaForCausalLM"]},
        "gemma2": {"architectures": ["Gemma2ForCausalLM"], "sliding_window": 19},
        "mixtral": {
            "architectures": ["MixtralForCausalLM"],
            "num_local_experts": 5,
            "num_experts_per_tok": 2,
            "sliding_window": None,
        },
    }
)


def save_tiny(folder: Path, family: str, dtype: str, positions: int = 256) -> None:
    """A model of FAMILIES. positions: tokens that prompt and answer may have."""
    settings = {**_SIZES, **FAMILIES[family], "model_type": family, "max_position_embeddings": positions}
    save_checkpoint(folder, settings, dtype)


def save_checkpoint(folder: Path, settings: Mapping[str, Any], dtype: str) -> None:
    """settings: those of config.json. The same weights each time, whole and by the names that checkpoints have."""
    folder.joinpath("config.json").write_text(json.dumps(dict(settings)), encoding="utf-8")
    source, kind = Dummy(seed=0), torch_dtype(dtype)
    whole = {part.name: Part(part.name, part.whole, fill=part.fill) for part in _parts(folder, dtype, source)}
    tensors = {name: source.read(part).to(kind).contiguous() for name, part in whole.items()}
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def _parts(folder: Path, dtype: str, source: Dummy) -> Iterator[Part]:
    """All that a model of the folder's configuration reads."""
    config = build_config(
        model=str(folder), platform=OWN["reference"], load_format="dummy", skip_tokenizer_init=True, dtype=dtype
    )
    services = Services(config, host_device(), {TENSOR_GROUP: Alone()}, ReferencePlatform.capabilities, source=source)
    services.build_model(services.reference(), [ReferenceAttention()])
    assert services.build is not None, "build_model leaves it behind"
    for parameter in services.build.parameters:
        for name in parameter.parts:
            for join in parameter.joins(name):
                yield from join
