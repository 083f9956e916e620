"""Tiny encoder-decoders."""

from __future__ import annotations

from typing import Any

from transformers import WhisperConfig, WhisperForConditionalGeneration

from tools.parity.encoder_inputs import Sounds
from tools.parity.family import MAX_POSITIONS, SIZES, Family

WHISPER: dict[str, Any] = {
    "d_model": 72,
    "encoder_layers": 2,
    "decoder_layers": 3,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 6,
    "encoder_ffn_dim": 44,
    "decoder_ffn_dim": 84,
    "num_mel_bins": 10,
    "max_source_positions": 21,
    "max_target_positions": MAX_POSITIONS,
    "decoder_start_token_id": 0,
}


def _whisper() -> Any:
    tokens = ("vocab_size", "bos_token_id", "eos_token_id", "pad_token_id")
    sizes = {name: SIZES[name] for name in tokens}
    return WhisperForConditionalGeneration(WhisperConfig(**{**sizes, "attn_implementation": "eager", **WHISPER}))


ENCODER_DECODERS = {
    family.name: family for family in (Family("whisper-audio", _whisper, images=Sounds(bins=10, frames=42, length=21)),)
}
