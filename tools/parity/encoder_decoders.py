"""Tiny encoder-decoders."""

from __future__ import annotations

from typing import Any

from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    M2M100Config,
    M2M100ForConditionalGeneration,
    MarianConfig,
    MarianMTModel,
    MBartConfig,
    MBartForConditionalGeneration,
    PegasusConfig,
    PegasusForConditionalGeneration,
    PLBartConfig,
    PLBartForConditionalGeneration,
    WhisperConfig,
    WhisperForConditionalGeneration,
)

from tools.parity.encoder_inputs import Sounds, Texts
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


BART: dict[str, Any] = {
    "vocab_size": SIZES["vocab_size"],
    "d_model": 72,
    "encoder_layers": 2,
    "decoder_layers": 3,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 6,
    "encoder_ffn_dim": 44,
    "decoder_ffn_dim": 84,
    "max_position_embeddings": MAX_POSITIONS,
    "decoder_start_token_id": 2,
    "forced_eos_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
    "attn_implementation": "eager",
}
_PADDED = {"pad_token_id": BART["vocab_size"] - 1, "max_position_embeddings": 2 * BART["vocab_size"]}
"""Positions begin behind the number of the padding token."""
TEXTS = Texts(vocab=SIZES["vocab_size"] - 1)


def _bart(config_class: Any, model_class: Any, **differs: Any) -> Family:
    name = f"{config_class.model_type}-seq2seq"
    return Family(
        name, lambda: model_class(config_class(**{**BART, **differs})), max_model_len=MAX_POSITIONS, images=TEXTS
    )


ENCODER_DECODERS = {
    family.name: family
    for family in (
        Family("whisper-audio", _whisper, images=Sounds(bins=10, frames=42, length=21)),
        _bart(BartConfig, BartForConditionalGeneration),
        _bart(M2M100Config, M2M100ForConditionalGeneration, **_PADDED),
        _bart(MarianConfig, MarianMTModel, scale_embedding=True, activation_function="silu"),
        _bart(MBartConfig, MBartForConditionalGeneration),
        _bart(PLBartConfig, PLBartForConditionalGeneration),
        _bart(PegasusConfig, PegasusForConditionalGeneration, scale_embedding=True),
    )
}
