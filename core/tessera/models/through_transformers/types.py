"""The types of transformers that can be served, and the configuration and classes of the one that a config.json
names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import transformers
from transformers import CONFIG_MAPPING, PreTrainedConfig, PreTrainedModel
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_MASKED_LM_MAPPING_NAMES,
    MODEL_FOR_PRETRAINING_MAPPING_NAMES,
    MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES,
    MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES,
    MODEL_MAPPING_NAMES,
)

from tessera.config.modalities import TOWERS
from tessera.config.unserved_media import UNSERVED_MEDIA
from tessera.models.fields import RefusedTypeError
from tessera.models.through_transformers import sparse_attention

_LAYER_TYPES = frozenset({"full_attention", "sliding_attention", sparse_attention.LAYER_TYPE})
_OTHER_INPUTS = ("vision_config", "audio_config", "speech_config", "image_config", "video_config")

_READ_WHOLE = ("minimax_m3_vl",)
"""Types whose files transformers reads with the class of the whole alone, though the text model has one."""

_CLASSIFIERS = (MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES, MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES)
_WITHOUT_USED_HEAD = (MODEL_MAPPING_NAMES, MODEL_FOR_MASKED_LM_MAPPING_NAMES, MODEL_FOR_PRETRAINING_MAPPING_NAMES)


@dataclass(frozen=True)
class ModelType:
    """A type that generates."""

    # As in config.json.
    model_type: str
    # As in config.json.
    architecture: str
    model_class: type[PreTrainedModel]
    config: PreTrainedConfig
    # Whether it is the text model of a checkpoint that has others beside it.
    nested: bool = False
    # Whether the class is that of the whole, since the text model beside the towers has none that generates.
    whole: bool = False


@dataclass(frozen=True)
class PoolingType(ModelType):
    """A type that answers with numbers."""

    # Whether its class has a head that classifies texts or tokens; otherwise the model below the head embeds.
    classifies: bool = False


def causal_types() -> Mapping[str, str]:
    """model_type -> architecture, for every causal type of the installed transformers."""
    return dict(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


def find_type(checkpoint: Mapping[str, Any]) -> ModelType | None:
    """The type that config.json names; None if transformers has no such causal type. auto_map is ignored. Raises
    RefusedTypeError for a configuration that transformers rejects and for kinds of models that cannot be served."""
    architecture = str((checkpoint.get("architectures") or ["?"])[0])
    types = [name for name, known in causal_types().items() if known == architecture]
    named = checkpoint.get("model_type", types[0] if types else None)
    if named not in types or named not in CONFIG_MAPPING:
        return None
    model_class = getattr(transformers, architecture)
    config = _config(str(named), model_class, checkpoint)
    config.is_encoder_decoder = False  # such a class is the decoder alone, and says so itself
    text = _text_type(config)
    if text is not None:
        model_class, config = text, config.get_text_config()
    _check_kind(model_class, config)
    beside = any(checkpoint.get(name) is not None for name in _OTHER_INPUTS)
    return ModelType(str(named), architecture, model_class, config, text is not None or beside)


def find_whole(checkpoint: Mapping[str, Any]) -> ModelType | None:
    """The type with towers that config.json names, of which the text model is a part of the whole; None of others.
    Raises RefusedTypeError for a configuration that transformers rejects."""
    architecture = str((checkpoint.get("architectures") or ["?"])[0])
    model_class, named = getattr(transformers, architecture, None), checkpoint.get("model_type")
    if architecture not in TOWERS or model_class is None or named not in CONFIG_MAPPING:
        return None
    config = _config(str(named), model_class, checkpoint)
    _check_kind(model_class, config)
    return ModelType(str(named), architecture, model_class, config, whole=True)


def _text_type(config: PreTrainedConfig) -> type[PreTrainedModel] | None:
    """The class of the text model, if it has a configuration of its own, of a model that may have others beside it;
    None for models of text alone, and where the text model has no such class."""
    text, known = config.get_text_config(), causal_types()
    if text is config or text.model_type not in known:
        return None
    model_class: type[PreTrainedModel] = getattr(transformers, known[text.model_type])
    return model_class if isinstance(text, model_class.config_class or ()) else None


def text_checkpoint(checkpoint: Mapping[str, Any]) -> dict[str, Any] | None:
    """config.json of the text model of a checkpoint with others beside it, as if it were alone, with all of its
    defaults; None where no class is the text model's alone. Raises RefusedTypeError."""
    named = checkpoint.get("model_type")
    if named not in CONFIG_MAPPING:
        raise RefusedTypeError("transformers does not know its type")
    try:
        whole = CONFIG_MAPPING[str(named)].from_dict(config_fields(checkpoint))
        text = whole.get_text_config()
    except Exception as error:  # its validation may raise anything
        raise RefusedTypeError(f"transformers does not accept its config.json ({first_line(error)})") from error
    architecture = causal_types().get(text.model_type)
    if architecture is None or named in _READ_WHOLE:
        return None
    tied = getattr(whole, "tie_word_embeddings", text.tie_word_embeddings)  # the whole's, where it has one, counts
    return {**text.to_dict(), "tie_word_embeddings": tied, "architectures": [architecture]}


def find_pooling_type(checkpoint: Mapping[str, Any]) -> PoolingType | None:
    """As find_type(), of models without a head that generates, and of classifiers."""
    architecture = str((checkpoint.get("architectures") or ["?"])[0])
    classifies = _types(architecture, _CLASSIFIERS)
    types = classifies or _types(architecture, _WITHOUT_USED_HEAD)
    named = checkpoint.get("model_type", types[0] if types else None)
    if named not in types or named not in CONFIG_MAPPING:
        return None
    if architecture in UNSERVED_MEDIA:
        raise RefusedTypeError(UNSERVED_MEDIA[architecture])
    model_class = getattr(transformers, architecture)
    config = _config(str(named), model_class, checkpoint)
    if any(getattr(config, name, None) is not None for name in _OTHER_INPUTS):
        raise RefusedTypeError("it needs image or audio inputs")
    _check_kind(model_class, config)
    return PoolingType(str(named), architecture, model_class, config, classifies=bool(classifies))


def _types(architecture: str, tables: Sequence[Mapping[str, Any]]) -> list[str]:
    """The types whose class in one of the tables has this name."""
    rows = chain.from_iterable(table.items() for table in tables)
    return list(dict.fromkeys(name for name, known in rows if architecture in _names(known)))


def _names(classes: str | Sequence[str]) -> Sequence[str]:
    """Of one class or of several."""
    return (classes,) if isinstance(classes, str) else classes


def config_fields(checkpoint: Mapping[str, Any]) -> dict[str, Any]:
    """Those of config.json that transformers' configuration of it is made of."""
    return {
        name: _with_floats(value)
        for name, value in checkpoint.items()
        if name not in ("auto_map", "dtype", "torch_dtype")
    }


def _with_floats(value: Any) -> Any:
    """With the numbers that transformers writes as objects, since JSON has none for them."""
    if isinstance(value, Mapping):
        floats = {name: _with_floats(own) for name, own in value.items()}
        return float(floats["__float__"]) if floats.keys() == {"__float__"} else floats
    return [_with_floats(own) for own in value] if isinstance(value, list) else value


def _config(model_type: str, model_class: type[PreTrainedModel], checkpoint: Mapping[str, Any]) -> PreTrainedConfig:
    try:
        config = CONFIG_MAPPING[model_type].from_dict(config_fields(checkpoint))
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
    if config.is_encoder_decoder:
        raise RefusedTypeError("it is the decoder of a model that has an encoder")
    if getattr(config, "prefix_lm", False):
        raise RefusedTypeError("each token of a prompt sees the whole prompt (prefix_lm)")
    if getattr(config, "default_language", "") is None:
        raise RefusedTypeError("its config.json names no default_language")
    if model_class._is_stateful:
        raise RefusedTypeError("it keeps a state beside keys and values")
    text = config.get_text_config()
    foreign = sorted({str(kind) for kind in getattr(text, "layer_types", None) or ()} - _LAYER_TYPES)
    if foreign:
        raise RefusedTypeError(f"it has layers of {foreign[0]}")


def first_line(error: BaseException) -> str:
    """The first line of an error, shortened for a one-line message."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:160].rstrip(".:")
