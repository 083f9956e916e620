"""A tiny random model as transformers makes and saves it. No dimension is a multiple of 16, nor are those of matrices
put together (q, k and v; gate and up)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

MAX_POSITIONS = 96
MATRIX_STD = 0.12
SIZES: Mapping[str, Any] = MappingProxyType(
    {
        "vocab_size": 101,
        "hidden_size": 72,
        "intermediate_size": 84,
        "num_hidden_layers": 2,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "max_position_embeddings": MAX_POSITIONS,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
    }
)


@dataclass(frozen=True)
class Family:
    """make: () -> the model with transformers' eager attention. shard_bytes: of the checkpoint's files, where it is to
    have several. max_model_len: where it is not what config.json says."""

    name: str
    make: Callable[[], Any]
    shard_bytes: int | None = None
    max_model_len: int | None = None


def maker(config_class: Any, model_class: Any, *, fixed_at: int | None = None, **differs: Any) -> Callable[[], Any]:
    """fixed_at: the rotary embedding is as transformers has it for texts of this length, whatever length they have. A
    field that is None is left out."""
    sizes = {**SIZES, "tie_word_embeddings": False}

    def make() -> Any:
        model = model_class(config_class(**{**sizes, **differs}, attn_implementation="eager"))
        if fixed_at is not None:
            fix_rotary(model, fixed_at)
        return model

    return make


def fix_rotary(model: Any, length: int) -> None:
    """transformers chooses longrope's factors, and dynamic scaling, anew for each text; here once for one length."""
    rotary = model.model.rotary_emb
    frequencies, rotary.attention_scaling = ROPE_INIT_FUNCTIONS[rotary.rope_type](model.config, seq_len=length)
    rotary.inv_freq.copy_(frequencies)
    rotary.rope_type = "default"


def save_model(family: Family, folder: Path, seed: int = 0) -> Any:
    """Makes the family's model with random weights in float32 and saves it as a checkpoint. Matrices are drawn at
    MATRIX_STD, norms from 0.5 to 1.5, biases from -0.5 to 0.5."""
    model = family.make().eval().float()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith(".bias"):
                weight.uniform_(-0.5, 0.5, generator=generator)
            elif weight.dim() == 1:
                weight.uniform_(0.5, 1.5, generator=generator)
            else:
                weight.normal_(std=MATRIX_STD, generator=generator)
    model.save_pretrained(folder, **({} if family.shard_bytes is None else {"max_shard_size": family.shard_bytes}))
    return model
