"""What the files of a sentence-transformers folder say about pooling: modules.json names the modules behind the model,
each with a folder of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeGuard

import msgspec

from tessera.config.model_folder import MAX_SETTINGS_BYTES, decode, read_bytes, read_json, regular_file
from tessera.config.pooler import ACTIVATIONS, DenseConfig, Pooling, TokenScore
from tessera.errors import ModelError, printable

MODULES = "modules.json"
SETTINGS = "config_sentence_transformers.json"
_LIMITS = ("sentence_bert_config.json", "sentence_roberta_config.json", "sentence_distilbert_config.json")
MODULE_FILES = (MODULES, SETTINGS, *_LIMITS)
"""Those beside config.json."""
_MODES: Mapping[str, Pooling] = MappingProxyType(
    {
        "pooling_mode_cls_token": "cls",
        "pooling_mode_mean_tokens": "mean",
        "pooling_mode_max_tokens": "max",
        "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len",
        "pooling_mode_weightedmean_tokens": "weighted_mean",
        "pooling_mode_lasttoken": "last",
    }
)
_NAMES: Mapping[str, Pooling] = MappingProxyType(
    {
        "cls": "cls",
        "mean": "mean",
        "max": "max",
        "mean_sqrt_len_tokens": "mean_sqrt_len",
        "weightedmean": "weighted_mean",
        "lasttoken": "last",
    }
)
MAX_MODULES = 16
MAX_SIZE = 2**20
MAX_PROMPTS = 256
MAX_PROMPT_CHARS = 2**14


@dataclass(frozen=True)
class SentenceTransformers:
    """The modules of a folder, in the order in which they are applied: pooling, dense layers, normalization. Or a token
    score or the pooling of sparse vectors, with nothing beside it."""

    # None: each token has a vector of its own (ColBERT).
    pooling: Pooling | None = None
    # The folder of the module that says so.
    pooling_from: str = ""
    token_score: TokenScore | None = None
    # Whether the weights of tokens of the vocabulary are pooled instead of hidden states (SPLADE).
    sparse: bool = False
    # Whether the tokens of a prompt are pooled too.
    include_prompt: bool = True
    dense: tuple[DenseConfig, ...] = ()
    # Whether vectors are normalized.
    normalize: bool = False
    # Texts put in front of others, by name.
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt: str | None = None
    # As of PoolerConfig.
    message: Mapping[str, Any] | None = None
    # Longest text that the model was made for, in tokens; None if the files do not say.
    max_tokens: int | None = None


class _Module(msgspec.Struct):
    type: str
    path: str = ""


def read_modules(folder: Path) -> SentenceTransformers | None:
    """None for a folder without modules.json. Raises ModelError for modules that are not known."""
    content = read_bytes(folder, MODULES, MAX_SETTINGS_BYTES)
    if content is None:
        return None
    modules = decode(content, folder / MODULES, list[_Module], "a list of modules")
    where = printable(folder / MODULES)
    if not modules or len(modules) > MAX_MODULES:
        raise ModelError(f"'{where}' names {len(modules)} modules; 1 to {MAX_MODULES} are supported.")
    said: dict[str, Any] = {}
    dense: list[DenseConfig] = []
    for module in modules:
        kind = module.type.rpartition(".")[2]
        if "/" in module.path or module.path in (".", ".."):
            raise ModelError(f"'{where}' names the folder '{printable(module.path, 60)}', which is not one beside it.")
        if kind == "Pooling" and not dense:
            said |= _pooling(folder, module.path)
        elif kind == "Dense":
            dense.append(_dense(folder, module.path))
        elif kind == "Normalize":
            said["normalize"] = True
        elif kind == "LogitScore" and not said and not dense:
            said |= {"pooling": "last", "pooling_from": module.path}
            said["token_score"] = _token_score(folder, module.path)
        elif kind == "SpladePooling" and not said and not dense:
            said |= _sparse_pooling(folder, module.path)
        elif kind not in ("Transformer", "MLMTransformer", "Dropout"):
            raise ModelError(
                f"'{where}' names the module {printable(module.type, 80)}, which is not supported; there are "
                "Transformer, Pooling, Dense behind or without it, Normalize, LogitScore, and SpladePooling."
            )
    if "pooling" not in said and not dense:
        raise ModelError(f"'{where}' names no module Pooling, so it is not known what becomes of the model's states.")
    return SentenceTransformers(**said, dense=tuple(dense), **_settings(folder), **_transformer(folder))


def _module_json(folder: Path, path: str) -> dict[str, Any]:
    content = read_json(folder, f"{path}/config.json")
    if content is None:
        raise ModelError(f"'{printable(folder / path)}' has no config.json; download it again.")
    return content


def _pooling(folder: Path, path: str) -> dict[str, Any]:
    said = _module_json(folder, path)
    named = said.get("pooling_mode")
    modes = [mode for name, mode in _MODES.items() if said.get(name) is True]
    if isinstance(named, str):
        modes = [_NAMES[named]] if named in _NAMES else []
    if len(modes) != 1:
        raise ModelError(
            f"'{printable(folder / path / 'config.json')}' asks for {len(modes)} ways of pooling that are known; one "
            f"of {', '.join(_NAMES)} is supported."
        )
    return {"pooling": modes[0], "pooling_from": path, "include_prompt": said.get("include_prompt") is not False}


def _sparse_pooling(folder: Path, path: str) -> dict[str, Any]:
    said = _module_json(folder, path)
    for name, served in (("pooling_strategy", "max"), ("activation_function", "relu")):
        if said.get(name, served) != served:
            where = printable(folder / path / "config.json")
            raise ModelError(f"'{where}' asks for the {name} {printable(said[name], 40)}; only {served} is supported.")
    return {"pooling": "max", "pooling_from": path, "sparse": True}


def _dense(folder: Path, path: str) -> DenseConfig:
    said, where = _module_json(folder, path), printable(folder / path)
    inner, outer = said.get("in_features"), said.get("out_features")
    if not (_is_size(inner) and _is_size(outer)):
        raise ModelError(f"'{where}' has a config.json without in_features and out_features.")
    if said.get("use_residual") is True:
        raise ModelError(f"'{where}' adds what it reads to what it computes (use_residual), which is not supported.")
    activation = str(said.get("activation_function", "torch.nn.modules.activation.Tanh")).rpartition(".")[2].lower()
    if activation not in ACTIVATIONS:
        raise ModelError(
            f"'{where}' asks for the activation {printable(activation, 40)}; there are {', '.join(ACTIVATIONS)}."
        )
    if regular_file(folder, f"{path}/model.safetensors") is None:
        raise ModelError(
            f"'{where}' has no model.safetensors; weights in other files are not read, because they can run code: save "
            "the model again with sentence-transformers."
        )
    return DenseConfig(path, inner, outer, bias=said.get("bias") is not False, activation=activation)


def _token_score(folder: Path, path: str) -> TokenScore:
    said = _module_json(folder, path)
    true, false = said.get("true_token_id"), said.get("false_token_id")
    if not _is_token(true) or not (false is None or _is_token(false)):
        raise ModelError(f"'{printable(folder / path / 'config.json')}' must say true_token_id and false_token_id.")
    return TokenScore(true, false)


def _is_token(value: Any) -> TypeGuard[int]:
    return type(value) is int and 0 <= value < 2**31


def _is_size(value: Any) -> TypeGuard[int]:
    return type(value) is int and 1 <= value <= MAX_SIZE


def _settings(folder: Path) -> dict[str, Any]:
    said = read_json(folder, SETTINGS) or {}
    prompts = said.get("prompts") or {}
    fits = isinstance(prompts, dict) and len(prompts) <= MAX_PROMPTS
    if not fits or not all(isinstance(text, str) and len(text) <= MAX_PROMPT_CHARS for text in prompts.values()):
        raise ModelError(
            f"prompts in '{printable(folder / SETTINGS)}' must be up to {MAX_PROMPTS} texts of up to "
            f"{MAX_PROMPT_CHARS:,} characters, by name."
        )
    default = said.get("default_prompt_name")
    for name in ("query", "document"):  # which ColBERTs have
        prefix = said.get(f"{name}_prefix")
        if isinstance(prefix, str) and len(prefix) <= MAX_PROMPT_CHARS:
            prompts = {name: prefix, **prompts}
    return {"prompts": prompts, "default_prompt": default if default in prompts else None}


def saved_activation(folder: Path) -> Any:
    """What makes a score of a reranker's number, if its settings say so: the name of a class of torch, or None."""
    return (read_json(folder, SETTINGS) or {}).get("activation_fn")


def _transformer(folder: Path) -> dict[str, Any]:
    """What the settings of the module Transformer say. Raises ModelError."""
    said: Sequence[Mapping[str, Any]] = [read_json(folder, name) or {} for name in _LIMITS]
    longest = (one.get("max_seq_length") for one in said)
    return {
        "max_tokens": next((one for one in longest if type(one) is int and 1 <= one < 2**31), None),
        "message": _message(said[0], folder / _LIMITS[0]),
    }


def _message(settings: Mapping[str, Any], file: Path) -> Mapping[str, Any] | None:
    """PoolerConfig.message. settings: in the file, whose modality_config names "message" where inputs become messages.
    Raises ModelError."""
    modalities = settings.get("modality_config")
    if not isinstance(modalities, Mapping) or "message" not in modalities:
        return None
    arguments = settings.get("processing_kwargs") or {}
    options = arguments.get("chat_template") or {} if isinstance(arguments, Mapping) else None
    if not isinstance(options, Mapping) or not isinstance(options.get("add_generation_prompt", False), bool):
        raise ModelError(f"processing_kwargs.chat_template in '{printable(file)}' is not an object of its arguments.")
    return dict(options)
