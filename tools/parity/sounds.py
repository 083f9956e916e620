"""A tiny model of each type that reads sounds, and what its processor makes of one: the names, shapes, dtypes and
numbers of tokens of its own (transformers' processing_*.py), with random numbers."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import transformers

from tessera.arrays import Array
from tools.parity.family import SIZES, Family
from tools.parity.images import Image, Images, pixels

_TOKEN = SIZES["vocab_size"] - 1
"""That which stands for a feature."""
_BEGIN, _END = 12, 13
_BINS = 7
"""Of the spectrum."""
_FRAMES = 24
"""That a tower of Whisper's kind takes at once."""
_LENGTHS = (24, 9, 15, 4)
"""In frames, of the sounds."""
_LONG = (40, 9, 24, 30)
"""In frames, of those that are cut into windows of _FRAMES."""
_WHISPER: dict[str, Any] = {
    "num_mel_bins": _BINS,
    "hidden_size": 36,
    "intermediate_size": 44,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "max_source_positions": _FRAMES // 2,
}


def _maker(name: str, text: Mapping[str, Any], audio: Mapping[str, Any], **differs: Any) -> Callable[[], Any]:
    """name: of its class. differs: other fields of the whole."""
    fields = {
        "text_config": {**SIZES, "tie_word_embeddings": False, **text},
        "audio_config": {**audio},
        "audio_token_id": _TOKEN,
        "tie_word_embeddings": False,
        "attn_implementation": "eager",
        **differs,
    }

    def make() -> Any:
        model: Any = getattr(transformers, name)
        return model(model.config_class(**{key: value for key, value in fields.items() if value is not None}))

    return make


def _sounds(make: Callable[[random.Random, int], Image]) -> Images:
    return Images(_TOKEN, make, modality="audio")


def _tokens(count: int) -> Sequence[int]:
    return [_BEGIN, *[_TOKEN] * count, _END]


def _mask(lengths: Sequence[int], padded: int) -> Array:
    """[windows, frames] int64: 1 before each length."""
    return (np.arange(padded) < np.array(lengths)[:, None]).astype(np.int64)


def _windows(number: int) -> list[int]:
    """In frames."""
    whole, rest = divmod(_LONG[number], _FRAMES)
    return [_FRAMES] * whole + [rest] * (rest > 0)


def _pooled(frames: int) -> int:
    """Features of Whisper's tower with pairs of positions joined."""
    return ((frames - 1) // 2 + 1 - 2) // 2 + 1


def _as_qwen2(draw: random.Random, number: int) -> Image:
    inputs = {
        "input_features": pixels(draw, 1, _BINS, _FRAMES),
        "feature_attention_mask": _mask([_LENGTHS[number]], _FRAMES),
    }
    return Image(_tokens(_pooled(_LENGTHS[number])), inputs)


def _in_windows(count: Callable[[int], int], bins: int = _BINS) -> Callable[[random.Random, int], Image]:
    """count: features of a window, by its frames."""

    def make(draw: random.Random, number: int) -> Image:
        windows = _windows(number)
        inputs = {
            "input_features": pixels(draw, len(windows), bins, _FRAMES),
            "input_features_mask": _mask(windows, _FRAMES),
        }
        return Image(_tokens(sum(map(count, windows))), inputs)

    return make


def _as_voxtral(draw: random.Random, number: int) -> Image:
    """Windows are heard whole, and four positions are a feature."""
    windows = len(_windows(number))
    return Image(_tokens(windows * _FRAMES // 8), {"input_features": pixels(draw, windows, _BINS, _FRAMES)})


def _as_glm(frames: int) -> int:
    return ((frames - 1) // 2 + 1 - 4) // 4 + 1


def _as_moss(draw: random.Random, number: int) -> Image:
    """Three positions are a feature; those that a window lacks are silent."""
    image = _in_windows(lambda frames: -(-((frames - 1) // 2 + 1) // 3))(draw, number)
    return Image(image.tokens, {**image.inputs, "padding_mask": np.ones((1, 8), np.int64)})


_CHUNK = 100
"""Frames that Qwen3-ASR's tower takes at once, of which it makes 13 features, a number that transformers' code has."""


def _as_qwen3(draw: random.Random, number: int) -> Image:
    frames = (108, 20, 100, 45)[number]
    whole, rest = divmod(frames, _CHUNK)
    padded = -(-frames // _CHUNK) * _CHUNK
    count = 13 * whole + -(-rest // 8)
    inputs = {
        "input_features": pixels(draw, 1, 16, padded),
        "input_features_mask": _mask([frames], padded),
    }
    return Image(_tokens(count), inputs)


def _as_granite(draw: random.Random, number: int) -> Image:
    """Blocks of 4 frames are 2 features each. Frames that pad a sound to another's length are heard too, so all have
    one length."""
    frames = 18
    count = -(-frames // 4) * 2
    inputs = {
        "input_features": pixels(draw, 1, frames, 10),
        "input_features_mask": np.ones((1, count), bool),
    }
    return Image(_tokens(count), inputs)


def _as_fun(draw: random.Random, number: int) -> Image:
    frames = _LENGTHS[number] // 2
    inputs = {"input_features": pixels(draw, 1, frames, 18), "input_features_mask": _mask([frames], frames)}
    return Image(_tokens(frames), inputs)


_GRANITE: dict[str, Any] = {
    "encoder_config": {
        "input_dim": 10,
        "num_layers": 2,
        "hidden_dim": 36,
        "num_heads": 3,
        "output_dim": 5,
        "context_size": 7,
        "max_pos_emb": 9,
        "conv_kernel_size": 3,
    },
    "projector_config": {
        "model_type": "blip_2_qformer",
        "hidden_size": 36,
        "encoder_hidden_size": 36,
        "num_hidden_layers": 1,
        "num_attention_heads": 3,
        "intermediate_size": 44,
        "cross_attention_frequency": 1,
    },
    "window_size": 4,
    "downsample_rate": 2,
    "has_lora_adapter": False,
}

WITH_SOUNDS = {
    family.name: family
    for family in (
        Family(
            "qwen2-audio",
            _maker(
                "Qwen2AudioForConditionalGeneration",
                {"model_type": "qwen2"},
                {"model_type": "qwen2_audio_encoder", **_WHISPER},
            ),
            images=_sounds(_as_qwen2),
        ),
        Family(
            "voxtral",
            _maker(
                "VoxtralForConditionalGeneration",
                {"model_type": "llama", "head_dim": 16},
                {"model_type": "voxtral_encoder", **_WHISPER, "intermediate_size": 144},
            ),
            images=_sounds(_as_voxtral),
        ),
        Family(
            "audio-flamingo3",
            _maker(
                "AudioFlamingo3ForConditionalGeneration",
                {"model_type": "qwen2"},
                {"model_type": "audioflamingo3_encoder", **_WHISPER},
            ),
            images=_sounds(_in_windows(_pooled)),
        ),
        Family(
            "glm-asr",
            _maker(
                "GlmAsrForConditionalGeneration",
                {"model_type": "llama"},
                {
                    "model_type": "glmasr_encoder",
                    "num_mel_bins": _BINS,
                    "hidden_size": 36,
                    "intermediate_size": 144,
                    "num_hidden_layers": 2,
                    "num_attention_heads": 3,
                    "max_position_embeddings": 12,
                },
            ),
            images=_sounds(_in_windows(_as_glm)),
        ),
        Family(
            "qwen3-asr",
            _maker(
                "Qwen3ASRForConditionalGeneration",
                {"model_type": "qwen3", "head_dim": 16},
                {
                    "model_type": "qwen3_asr_encoder",
                    "num_mel_bins": 16,
                    "encoder_layers": 2,
                    "encoder_attention_heads": 3,
                    "encoder_ffn_dim": 44,
                    "d_model": 36,
                    "n_window": 50,
                    "output_dim": 72,
                    "n_window_infer": 100,
                    "downsample_hidden_size": 10,
                },
            ),
            images=_sounds(_as_qwen3),
        ),
        Family(
            "granite-speech",
            _maker(
                "GraniteSpeechForConditionalGeneration", {"model_type": "granite"}, {}, audio_config=None, **_GRANITE
            ),
            images=_sounds(_as_granite),
        ),
        Family(
            "granite-speech-plus",
            _maker(
                "GraniteSpeechPlusForConditionalGeneration",
                {"model_type": "granite"},
                {},
                audio_config=None,
                **{
                    **_GRANITE,
                    "encoder_config": {**_GRANITE["encoder_config"], "cat_hidden_layers": [1]},
                    "projector_config": {**_GRANITE["projector_config"], "encoder_hidden_size": 72},
                },
            ),
            images=_sounds(_as_granite),
        ),
        Family(
            "fun-asr-nano",
            _maker(
                "FunAsrNanoForConditionalGeneration",
                {"model_type": "qwen3", "head_dim": 16},
                {
                    "model_type": "fun_asr_nano_encoder",
                    "num_mel_bins": 6,
                    "num_stacked_frames": 3,
                    "hidden_size": 36,
                    "num_attention_heads": 3,
                    "intermediate_size": 44,
                    "num_hidden_layers": 2,
                    "num_timestamp_prediction_layers": 1,
                    "fsmn_kernel_size": 3,
                    "max_position_embeddings": 99,
                },
                adaptor_config={
                    "hidden_size": 72,
                    "num_attention_heads": 3,
                    "intermediate_size": 18,
                    "num_hidden_layers": 1,
                    "projector_hidden_size": 40,
                },
            ),
            images=_sounds(_as_fun),
        ),
        Family(
            "moss-transcribe",
            _maker(
                "MossTranscribeDiarizeForConditionalGeneration",
                {"model_type": "qwen3", "head_dim": 16},
                {"model_type": "moss_transcribe_diarize_audio", **_WHISPER},
                audio_merge_size=3,
            ),
            images=_sounds(_as_moss),
        ),
    )
}
