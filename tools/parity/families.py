"""The tiny random model of each family, as transformers makes and saves it. No dimension is a multiple of 16, nor are
those of matrices put together (q, k and v; gate and up)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

MAX_POSITIONS = 96
MATRIX_STD = 0.12


@dataclass(frozen=True)
class Family:
    """make: () -> the model with transformers' eager attention. shard_bytes: of the checkpoint's files, where it is to
    have several."""

    name: str
    make: Callable[[], Any]
    shard_bytes: int | None = None


def _maker(config_class: Any, model_class: Any, **differs: Any) -> Callable[[], Any]:
    sizes: dict[str, Any] = {
        "vocab_size": 101,
        "hidden_size": 72,
        "intermediate_size": 84,
        "num_hidden_layers": 2,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "max_position_embeddings": MAX_POSITIONS,
        "tie_word_embeddings": False,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
    }

    def make() -> Any:
        return model_class(config_class(**{**sizes, **differs}, attn_implementation="eager"))

    return make


_LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}

FAMILIES = {
    family.name: family
    for family in (
        Family(
            "llama2",
            _maker(
                LlamaConfig,
                LlamaForCausalLM,
                hidden_size=60,
                num_attention_heads=5,
                num_key_value_heads=5,
                rms_norm_eps=1e-5,
            ),
            shard_bytes=40_000,
        ),
        Family(
            "llama3",
            _maker(
                LlamaConfig, LlamaForCausalLM, rope_parameters=_LLAMA3_ROPE, tie_word_embeddings=True, rms_norm_eps=1e-5
            ),
        ),
        Family("mistral", _maker(MistralConfig, MistralForCausalLM, sliding_window=7)),
        Family("qwen2", _maker(Qwen2Config, Qwen2ForCausalLM, tie_word_embeddings=True)),
        Family(
            "qwen2-window",
            _maker(
                Qwen2Config,
                Qwen2ForCausalLM,
                num_hidden_layers=3,
                use_sliding_window=True,
                sliding_window=9,
                max_window_layers=1,
            ),
        ),
        Family("qwen3", _maker(Qwen3Config, Qwen3ForCausalLM, num_key_value_heads=3, head_dim=18)),
        Family(
            "mixtral",
            _maker(
                MixtralConfig,
                MixtralForCausalLM,
                num_local_experts=5,
                num_experts_per_tok=2,
                experts_implementation="eager",
            ),
        ),
    )
}


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
