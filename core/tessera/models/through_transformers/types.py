"""The causal types of transformers, and the configuration and class of the one that a config.json names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import transformers
from transformers import CONFIG_MAPPING, PreTrainedConfig, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from tessera.models.fields import RefusedTypeError

_LAYER_TYPES = frozenset({"full_attention", "sliding_attention"})
_OTHER_INPUTS = ("vision_config", "audio_config", "speech_config", "image_config", "video_config")


@dataclass(frozen=True)
class CausalType:
    """model_type and architecture are config.json's names."""

    model_type: str
    architecture: str
    model_class: type[PreTrainedModel]
    config: PreTrainedConfig


def causal_types() -> Mapping[str, str]:
    """model_type -> architecture, for every causal type of the installed transformers."""
    return dict(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


def find_type(checkpoint: Mapping[str, Any]) -> CausalType | None:
    """The type that config.json names; None if transformers has no such causal type. auto_map is ignored. Raises
    RefusedTypeError for a configuration that transformers rejects and for kinds of models that cannot be served."""
    architecture = str((checkpoint.get("architectures") or ["?"])[0])
    types = [name for name, known in causal_types().items() if known == architecture]
    named = checkpoint.get("model_type", types[0] if types else None)
    if named not in types or named not in CONFIG_MAPPING:
        return None
    model_class = getattr(transformers, architecture)
    config = _config(str(named), model_class, checkpoint)
    _check_kind(model_class, config)
    return CausalType(str(named), architecture, model_class, config)


def _config(model_type: str, model_class: type[PreTrainedModel], checkpoint: Mapping[str, Any]) -> PreTrainedConfig:
    given = {name: value for name, value in checkpoint.items() if name not in ("auto_map", "dtype", "torch_dtype")}
    try:
        config = CONFIG_MAPPING[model_type].from_dict(given)
    except Exception as error:  # its validation may raise anything
        raise RefusedTypeError(f"transformers does not accept its config.json ({first_line(error)})") from error
    try:
        text = config.get_text_config()
    except ValueError as error:
        raise RefusedTypeError("it is made of several language models") from error
    takes = model_class.config_class
    return text if takes is not None and isinstance(text, takes) else config


def _check_kind(model_class: type[PreTrainedModel], config: PreTrainedConfig) -> None:
    """Refuses what the class or the configuration declares to be unsupported."""
    if any(getattr(config, name, None) is not None for name in _OTHER_INPUTS):
        raise RefusedTypeError("it needs image or audio inputs")
    if config.is_encoder_decoder:
        raise RefusedTypeError("it is the decoder of a model that has an encoder")
    if model_class._is_stateful:
        raise RefusedTypeError("it keeps a state beside keys and values")
    text = config.get_text_config()
    foreign = sorted({str(kind) for kind in getattr(text, "layer_types", None) or ()} - _LAYER_TYPES)
    if foreign:
        raise RefusedTypeError(f"it has layers of {foreign[0]}")
    if getattr(text, "kv_lora_rank", None) is not None:
        raise RefusedTypeError("it has latent attention")
    if getattr(text, "hidden_size_per_layer_input", None):
        raise RefusedTypeError("it uses more than one embedding of its tokens")


def first_line(error: BaseException) -> str:
    """The first line of an error, shortened for a one-line message."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:160].rstrip(".:")
