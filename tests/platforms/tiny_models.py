"""Tiny random models in the families' own format, no dimension a multiple of 16, with a tokenizer of one character a
token."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tokenizers
import torch
import transformers
from transformers.utils.logging import disable_progress_bar, enable_progress_bar

VOCAB = 101
LEFT_OUT = "left out"
EOS = 2
MAX_POSITIONS = 256
_FIRST_CHARACTER = 27  # so that the last is 127: one byte each, whichever is drawn
_SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 72,
    "intermediate_size": 88,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 12,
    "max_position_embeddings": MAX_POSITIONS,
    "initializer_range": 0.12,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": EOS,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {"sliding_window": 19},
    "qwen2": {"use_sliding_window": True, "sliding_window": 19, "max_window_layers": 1},
    "qwen3": {},
    "mixtral": {"num_local_experts": 5, "num_experts_per_tok": 2, "sliding_window": None},
    "phi3": {"pad_token_id": None},
    "smollm3": {"no_rope_layer_interval": 2, "pad_token_id": None},
    "granite": {"embedding_multiplier": 3.0, "residual_multiplier": 0.3, "logits_scaling": 2.0},
    "gemma": {},
    "gemma2": {"sliding_window": 19},
    "gemma3_text": {"sliding_window": 19},
    "olmo2": {},
    "falcon": {"new_decoder_architecture": True, "num_kv_heads": 2, "head_dim": LEFT_OUT, "ffn_hidden_size": 88},
    "bloom": {"intermediate_size": LEFT_OUT, "num_key_value_heads": LEFT_OUT, "head_dim": LEFT_OUT},
    "qwen3_moe": {"num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 40},
    "glm4_moe": {
        "n_routed_experts": 6,
        "n_group": 3,
        "topk_group": 2,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 40,
        "routed_scaling_factor": 2.5,
        "use_qk_norm": True,
    },
    "qwen3_5_text": {
        "head_dim": 16,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 10,
        "linear_value_head_dim": 14,
    },
    "lfm2": {
        "num_hidden_layers": 3,
        "layer_types": ["conv", "full_attention", "conv"],
        "block_auto_adjust_ff_dim": False,
    },
    "nemotron_h": {
        "layers_block_type": ["linear_attention", "mlp"],
        "num_hidden_layers": LEFT_OUT,
        "mamba_num_heads": 4,
        "mamba_head_dim": 14,
        "n_groups": 2,
        "ssm_state_size": 10,
    },
    "mamba": {"intermediate_size": 90, "state_size": 10, "time_step_rank": 7},
    "jamba": {
        "num_hidden_layers": 3,
        "attn_layer_period": 3,
        "attn_layer_offset": 1,
        "num_experts": 5,
        "mamba_d_state": 10,
        "mamba_dt_rank": 7,
    },
    "deepseek_v3": {
        "num_key_value_heads": 6,
        "qk_nope_head_dim": 12,
        "qk_rope_head_dim": 6,
        "v_head_dim": 10,
        "kv_lora_rank": 20,
        "q_lora_rank": 28,
        "first_k_dense_replace": 1,
        "n_routed_experts": 6,
        "n_group": 3,
        "topk_group": 2,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 40,
    },
    "glm_moe_dsa": {
        "num_hidden_layers": 3,
        "num_key_value_heads": 6,
        "qk_nope_head_dim": 12,
        "qk_rope_head_dim": 6,
        "v_head_dim": 10,
        "kv_lora_rank": 20,
        "q_lora_rank": 28,
        "indexer_types": ["full", "shared", "full"],
        "index_topk": 9,
        "index_head_dim": 14,
        "index_n_heads": 20,
        "mlp_layer_types": ["dense", "dense", "sparse"],
        "n_routed_experts": 6,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 40,
    },
}


def save_family(family: str, folder: Path, **differs: Any) -> Path:
    """A model of a family in a new folder of this name; the same weights every time. differs: fields of its
    configuration."""
    target = folder / family
    settings = {**_SIZES, **FAMILIES.get(family, {}), **differs}
    sizes = {name: value for name, value in settings.items() if value != LEFT_OUT}
    config = transformers.AutoConfig.for_model(family, **sizes)
    torch.manual_seed(20)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    disable_progress_bar()
    try:
        model.save_pretrained(target)
    finally:
        enable_progress_bar()
    save_tokenizer(target)
    return target


def save_tokenizer(folder: Path) -> None:
    spelled = {chr(_FIRST_CHARACTER + token): token for token in range(VOCAB)}
    alphabet = {byte: character for character, byte in _byte_alphabet().items()}
    vocabulary = {alphabet[ord(character)]: token for character, token in spelled.items()}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))


def text_of(tokens: list[int]) -> str:
    return "".join(chr(_FIRST_CHARACTER + token) for token in tokens)


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's: printable Latin-1 stands for itself, the other bytes in order for the characters from 256 on."""
    itself = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in itself]
    return {chr(byte): byte for byte in itself} | {chr(256 + place): byte for place, byte in enumerate(others)}
