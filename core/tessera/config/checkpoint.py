"""The parts of a model's config.json that configuration needs: vocabulary size and context length."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tessera.config.model_folder import gguf_model, is_gguf, names_in, read_json, refuse_model
from tessera.config.retriever import retriever_alone
from tessera.config.thinker import thinker_alone
from tessera.config.unserved_media import UNSERVED_MEDIA
from tessera.config.weight_files import find_weights
from tessera.errors import ModelError, printable

FILE = "config.json"
QUANTIZATION_FILE = "hf_quant_config.json"
"""Holds what older files of the format modelopt do not have in config.json."""
_QUANTIZATION_METHOD = "modelopt"

WEIGHT_FORMAT = "tessera.plugins:weight_format"
"""Raises ModelError for quantized weights that cannot be read. A dotted path, because config cannot import plugins."""

_LAYERS = ("num_hidden_layers", "num_layers", "n_layer", "n_layers")
_HEADS = ("num_attention_heads", "num_key_value_heads", "num_heads", "num_kv_heads", "n_head", "n_heads", "head_dim")
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "num_experts_per_tok")
_WIDTHS = ("hidden_size", "n_embd", "n_embed", "d_model")
_INNER = ("intermediate_size", "moe_intermediate_size", "n_inner", "ffn_dim", "d_ff")

MAX_SIZES: Mapping[str, int] = MappingProxyType(
    {
        "vocab_size": 2**24,
        **dict.fromkeys(_LAYERS, 2**10),
        **dict.fromkeys((*_HEADS, *_EXPERTS), 2**14),
        **dict.fromkeys(_WIDTHS, 2**20),
        **dict.fromkeys(_INNER, 2**24),
    }
)
"""Upper bounds, several times those of any model. A larger value means a broken file; without this check, the model
would be built module by module before loading the weights showed the error."""

_NESTED = ("text_config", "decoder_config")
_POSITIONS = (
    "max_position_embeddings", "n_positions", "max_sequence_length", "n_ctx", "max_seq_len", "model_max_length",
    "max_target_positions", "seq_length", "context_length", "max_text_positions",
)  # fmt: skip
# Families whose tables of positions begin with rows of padding, one more than the id of the padding token.
_PADDED_POSITIONS = (
    "camembert", "data2vec-text", "esm", "mpnet", "roberta", "roberta-prelayernorm", "xlm-roberta",
    "xlm-roberta-xl", "xmod",
)  # fmt: skip
# transformers' defaults for fields that published configurations omit; where it has no bound, as for Bloom, what the
# model was trained with.
_LEFT_OUT: Mapping[str, int] = MappingProxyType(
    {
        "bloom": 2048,
        "clip_text_model": 77,
        "falcon": 2048,
        "gemma": 8192,
        "gemma2": 8192,
        "gemma3_text": 131072,
        "mpt": 2048,
        "mt5": 1024,
        "recurrent_gemma": 8192,
        "siglip2_text_model": 64,
        "siglip_text_model": 64,
        "t5": 1024,
        "umt5": 1024,
    }
)
_VOCAB_LEFT_OUT: Mapping[str, int] = MappingProxyType(
    {"clip_text_model": 49408, "gemma3_text": 262208, "siglip2_text_model": 32000, "siglip_text_model": 32000}
)
ONLY_IN_PROMPTS: Mapping[str, int] = MappingProxyType({"MllamaForCausalLM": 8, "MllamaForConditionalGeneration": 8})
"""How many tokens there are behind those of vocab_size, which have an embedding and are never written, such as the one
that stands for an image. By architecture."""


@dataclass(frozen=True)
class Checkpoint:
    folder: Path
    config: dict[str, Any]  # the contents of config.json
    text: dict[str, Any]  # the language model's part of it
    vocab_size: int
    max_positions: int | None  # context length the model was made for; None if not stated
    most_positions: int | None = None  # the longest that the scaling of its rotary embedding allows


def read_checkpoint(folder: Path, *, weights: bool, mmproj: Path | None = None) -> Checkpoint:
    """Reads config.json. weights: whether *.safetensors are required. mmproj: the file of the tower beside a GGUF file.
    Raises ModelError for an unsupported model."""
    if not is_gguf(folder):
        refuse_model(str(folder), names_in(folder), weights=weights)
    config = _read_config(folder, mmproj)
    text = _text_config(folder, config)
    for name, most in MAX_SIZES.items():
        if isinstance(value := text.get(name), int) and value > most:
            raise ModelError(f"{name} in '{printable(folder / FILE)}' is more than {most:,}; no model has so many.")
    if weights and not is_gguf(folder):
        find_weights(folder)
    field = next((name for name in _POSITIONS if text.get(name) is not None), None)
    made_for = _LEFT_OUT.get(str(text.get("model_type"))) if field is None else _count(folder, text, field)
    if made_for is not None and text.get("model_type") in _PADDED_POSITIONS:
        made_for = max(1, made_for - 1 - _count(folder, {"pad_token_id": 1, **text}, "pad_token_id"))
    usual, most_positions = (None, None) if made_for is None else scaled(text, made_for)
    if text.get("vocab_size") is None and text.get("model_type") in _VOCAB_LEFT_OUT:
        text = {**text, "vocab_size": _VOCAB_LEFT_OUT[str(text["model_type"])]}
    architecture = str(config["architectures"][0])
    if (
        text.get("vocab_size") is None and architecture in UNSERVED_MEDIA
    ):  # it may have models within, and no such field
        raise ModelError(f"model architecture '{architecture}' is not supported ({UNSERVED_MEDIA[architecture]}).")
    vocab = _count(folder, text, "vocab_size") + ONLY_IN_PROMPTS.get(architecture, 0)
    return Checkpoint(folder, config, text, vocab, usual, most_positions)


def scaled(config: Mapping[str, Any], positions: int) -> tuple[int, int]:
    """The default and the maximum context length. yarn reaches as far as its factor says. dynamic can reach further,
    but that changes the rotary embedding of shorter texts, so it is not the default. Invalid values are ignored here
    and refused when the model is built."""
    said = config.get("rope_scaling") or config.get("rope_parameters")
    if not isinstance(said, Mapping):
        return positions, positions
    kind, factor = said.get("rope_type") or said.get("type"), said.get("factor")
    if isinstance(factor, bool) or not isinstance(factor, int | float) or not 1 <= factor <= 1024:
        return positions, positions
    if kind == "dynamic":
        return positions, int(positions * factor)
    original = said.get("original_max_position_embeddings")
    if kind == "yarn" and type(original) is int and 0 < original < 2**31:
        reach = max(positions, int(original * factor))
        return reach, reach
    return positions, positions


def _read_config(folder: Path, mmproj: Path | None) -> dict[str, Any]:
    path = printable(folder / FILE)
    config = read_json(folder, FILE) if mmproj is None else gguf_model(folder, mmproj).config()
    if config is None:
        raise ModelError(f"'{path}' is gone.")
    architectures = config.get("architectures")
    if not isinstance(architectures, list) or not architectures or not all(isinstance(a, str) for a in architectures):
        raise ModelError(f"'{path}' names no architectures, so it is not known what to build.")
    config = retriever_alone(thinker_alone(config))
    if config.get("quantization_config") is None and (beside := _quantization_beside(folder)) is not None:
        config = {**config, "quantization_config": beside}
    if config.get("quantization_config") is not None:
        module, _, function = WEIGHT_FORMAT.partition(":")
        try:
            getattr(importlib.import_module(module), function)(config)
        except ModelError as error:
            raise ModelError(f"'{printable(folder)}': {error.message}") from None
    return config


def _quantization_beside(folder: Path) -> dict[str, Any] | None:
    """What a file of its own says of quantized weights, as quantization_config would, if there is one."""
    said = None if is_gguf(folder) else read_json(folder, QUANTIZATION_FILE)
    if said is None:
        return None
    content = said.get("quantization")
    if not isinstance(content, dict):
        raise ModelError(f"'{printable(folder / QUANTIZATION_FILE)}' has no object named quantization.")
    return {**content, "quant_method": _QUANTIZATION_METHOD}


def _text_config(folder: Path, config: dict[str, Any]) -> dict[str, Any]:
    """The language model's part of config.json; multimodal models nest it."""
    name = next((name for name in _NESTED if name in config), None)
    nested = config if name is None else config[name]
    if not isinstance(nested, dict):
        raise ModelError(f"{name} in '{printable(folder / FILE)}' is not an object.")
    return nested


def _count(folder: Path, config: Mapping[str, Any], name: str) -> int:
    value = config.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value < 2**31:
        shown_value = "is missing" if value is None else "is not a positive whole number below 2,147,483,648"
        raise ModelError(f"{name} {shown_value} in '{printable(folder / FILE)}'.")
    return value
