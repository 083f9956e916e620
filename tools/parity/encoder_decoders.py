"""Tiny encoder-decoders."""

from __future__ import annotations

from typing import Any

from torch import nn
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    M2M100Config,
    M2M100ForConditionalGeneration,
    MarianConfig,
    MarianMTModel,
    MBartConfig,
    MBartForConditionalGeneration,
    MT5Config,
    MT5ForConditionalGeneration,
    PegasusConfig,
    PegasusForConditionalGeneration,
    PLBartConfig,
    PLBartForConditionalGeneration,
    T5Config,
    T5ForConditionalGeneration,
    UMT5Config,
    UMT5ForConditionalGeneration,
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


T5: dict[str, Any] = {
    "vocab_size": SIZES["vocab_size"],
    "d_model": 72,
    "d_kv": 14,
    "d_ff": 84,
    "num_layers": 2,
    "num_decoder_layers": 3,
    "num_heads": 6,
    "relative_attention_num_buckets": 12,
    "relative_attention_max_distance": 29,
    "n_positions": MAX_POSITIONS,
    "decoder_start_token_id": 2,
    "eos_token_id": None,
    "pad_token_id": None,
    "attn_implementation": "eager",
}
"""Buckets of one distance, of several, and keys beyond the farthest."""


def _t5(config_class: Any, model_class: Any, *, untied: bool = False, name: str = "", **differs: Any) -> Family:
    """untied: the head has a weight of its own, as in the files of all but the first T5."""

    def make() -> Any:
        model = model_class(config_class(**{**T5, **differs}))
        if untied:
            model.lm_head.weight = nn.Parameter(model.lm_head.weight.detach().clone())
        return model

    name = name or f"{config_class.model_type}-seq2seq"
    return Family(name, make, max_model_len=MAX_POSITIONS, images=TEXTS)


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
        _t5(T5Config, T5ForConditionalGeneration),
        _t5(
            T5Config,
            T5ForConditionalGeneration,
            untied=True,
            name="t5-v1.1-seq2seq",
            tie_word_embeddings=False,
            feed_forward_proj="gated-gelu",
        ),
        _t5(MT5Config, MT5ForConditionalGeneration, untied=True),
        _t5(UMT5Config, UMT5ForConditionalGeneration),
    )
}
