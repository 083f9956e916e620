"""Tiny encoder-decoders."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    CanaryConfig,
    CanaryForConditionalGeneration,
    CohereAsrConfig,
    CohereAsrForConditionalGeneration,
    M2M100Config,
    M2M100ForConditionalGeneration,
    MarianConfig,
    MarianMTModel,
    MBartConfig,
    MBartForConditionalGeneration,
    MoonshineConfig,
    MoonshineForConditionalGeneration,
    MoonshineStreamingConfig,
    MoonshineStreamingForConditionalGeneration,
    MT5Config,
    MT5ForConditionalGeneration,
    PegasusConfig,
    PegasusForConditionalGeneration,
    PLBartConfig,
    PLBartForConditionalGeneration,
    Speech2TextConfig,
    Speech2TextForConditionalGeneration,
    SpeechT5Config,
    SpeechT5ForSpeechToText,
    T5Config,
    T5ForConditionalGeneration,
    UMT5Config,
    UMT5ForConditionalGeneration,
    WhisperConfig,
    WhisperForConditionalGeneration,
)

from tessera.config.sound_encoder import sound_encoder
from tools.parity.encoder_inputs import Sounds, Spectra, Texts, Waves
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


MOONSHINE: dict[str, Any] = {
    **{name: SIZES[name] for name in SIZES if name not in ("num_hidden_layers", "num_key_value_heads")},
    "attn_implementation": "eager",
    "decoder_start_token_id": 0,
}


_FRAMES = {"frame_ms": 20.0}


def _moonshine() -> Any:
    sizes = {name: MOONSHINE[name] for name in MOONSHINE if name != "num_attention_heads"}
    heads = {"encoder_num_attention_heads": 6, "decoder_num_attention_heads": 6}
    layers = {"encoder_num_hidden_layers": 2, "decoder_num_hidden_layers": 3}
    return MoonshineForConditionalGeneration(MoonshineConfig(**{**sizes, **heads, **layers}))


def _moonshine_streaming() -> Any:
    encoder = {"hidden_size": 60, "intermediate_size": 68, "num_hidden_layers": 2, "num_attention_heads": 6}
    windows = {"num_key_value_heads": 6, "sliding_windows": [[4, 2], [5, 0]], **_FRAMES}
    turned = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.7}
    sizes = {**MOONSHINE, "num_hidden_layers": 3, "num_key_value_heads": 6, "rope_parameters": turned}
    config = MoonshineStreamingConfig(**sizes, encoder_config={**encoder, **windows})
    return MoonshineStreamingForConditionalGeneration(config)


_CONFORMER: dict[str, Any] = {
    "model_type": "parakeet_encoder",
    "hidden_size": 60,
    "intermediate_size": 68,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_mel_bins": 12,
    "subsampling_factor": 4,
    "subsampling_conv_channels": 6,
    "conv_kernel_size": 5,
    "scale_input": False,
    "dropout": 0.0,
    "layerdrop": 0.0,
}
_TOLD: dict[str, Any] = {**MOONSHINE, "num_hidden_layers": 3, "num_key_value_heads": 6, "head_dim": 12}


def _cohere_asr() -> Any:
    return CohereAsrForConditionalGeneration(CohereAsrConfig(**_TOLD, encoder_config=_CONFORMER))


def _canary() -> Any:
    tokens = ("bos_token_id", "eos_token_id", "pad_token_id", "vocab_size", "decoder_start_token_id")
    top = {name: _TOLD[name] for name in tokens}
    decoder = {name: value for name, value in _TOLD.items() if name != "attn_implementation"}
    config = CanaryConfig(
        **top,
        attn_implementation="eager",
        decoder_config=decoder,
        encoder_config={**_CONFORMER, "hidden_size": 72, "num_attention_heads": 4},
    )
    return CanaryForConditionalGeneration(config)


_SUBSAMPLED: dict[str, Any] = {"conv_kernel_sizes": [5, 3]}
_CONVOLUTIONS: dict[str, Any] = {"conv_stride": [50, 4], "conv_kernel": [70, 5]}


def _speech_to_text() -> Any:
    sizes = {name: value for name, value in BART.items() if name != "max_position_embeddings"}
    config = Speech2TextConfig(
        **{**sizes, "pad_token_id": _PADDED["pad_token_id"]},
        max_target_positions=_PADDED["max_position_embeddings"],
        conv_channels=52,
        input_feat_per_channel=10,
        **_SUBSAMPLED,
    )
    return Speech2TextForConditionalGeneration(config)


def _speecht5() -> Any:
    names = ("d_model", "max_position_embeddings", "forced_eos_token_id")
    sizes = {name: value for name, value in BART.items() if name not in names}
    config = SpeechT5Config(
        **{**sizes, "pad_token_id": SIZES["vocab_size"] - 1},
        hidden_size=BART["d_model"],
        max_text_positions=MAX_POSITIONS,
        conv_dim=[12, 20],
        **_CONVOLUTIONS,
        num_conv_pos_embeddings=6,
        num_conv_pos_embedding_groups=4,
        encoder_max_relative_position=7,
    )
    return SpeechT5ForSpeechToText(config)


def _hears(name: str, architecture: str, make: Callable[[], Any], bins: int = 0, **fields: Any) -> Family:
    """bins: of the spectrograms that its encoder takes; 0: it takes sounds as they are. fields: of config.json, as
    far as that says how many positions a sound has."""
    encoder = sound_encoder({"architectures": [architecture], **fields})
    assert encoder is not None
    images = Spectra(encoder, bins) if bins else Waves(encoder)
    return Family(name, make, max_model_len=MAX_POSITIONS, images=images)


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
        _hears("moonshine", "MoonshineForConditionalGeneration", _moonshine),
        _hears(
            "moonshine-streaming",
            "MoonshineStreamingForConditionalGeneration",
            _moonshine_streaming,
            max_position_embeddings=MAX_POSITIONS,
            encoder_config=_FRAMES,
        ),
        _hears("canary", "CanaryForConditionalGeneration", _canary, bins=12, encoder_config=_CONFORMER),
        _hears("cohere-asr", "CohereAsrForConditionalGeneration", _cohere_asr, bins=12, encoder_config=_CONFORMER),
        _hears("speech-to-text", "Speech2TextForConditionalGeneration", _speech_to_text, bins=10, **_SUBSAMPLED),
        _hears("speecht5", "SpeechT5ForSpeechToText", _speecht5, **_CONVOLUTIONS),
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
