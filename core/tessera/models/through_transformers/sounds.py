"""How transformers' models make features of a sound: by get_audio_features(), or within their forward()."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

Features = Callable[[Any, Mapping[str, Tensor]], Tensor]
"""The model below the head, and what its processor made of a sound, by name -> features [.., n, hidden_size]."""


def sound_features(architecture: str) -> Features:
    """architecture: of config.json."""
    return _WITHIN_FORWARD.get(architecture, _by_method)


def _by_method(model: Any, inputs: Mapping[str, Tensor]) -> Tensor:
    """What the method does not name is for forward(), which joins sounds of unlike lengths."""
    known = inspect.signature(model.get_audio_features).parameters
    own = {name: value for name, value in inputs.items() if name in known}
    features: Tensor = model.get_audio_features(**own, return_dict=True).pooler_output
    return features


def _qwen2_audio(model: Any, inputs: Mapping[str, Tensor]) -> Tensor:
    """The tower sees the sound alone, and not what follows it up to 30 seconds. Two positions are one feature."""
    frames, mask = inputs["input_features"], inputs["feature_attention_mask"]
    seen, kept = (int(length) for length in model.audio_tower._get_feat_extract_output_lengths(mask.sum()))
    positions = (frames.shape[-1] - 2) // 2 + 1
    hidden = torch.zeros(1, 1, 1, positions, dtype=frames.dtype, device=frames.device)
    hidden[..., seen:] = torch.finfo(frames.dtype).min
    states = model.audio_tower(frames, attention_mask=hidden.expand(-1, -1, positions, -1)).last_hidden_state
    features: Tensor = model.multi_modal_projector(states[:, :kept])
    return features


_WITHIN_FORWARD: Mapping[str, Features] = MappingProxyType({"Qwen2AudioForConditionalGeneration": _qwen2_audio})
