"""The model authors' recommendations in generation_config.json, end-of-sequence tokens and sampling defaults, and the
operator's overrides."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from tessera.config.checkpoint import Checkpoint
from tessera.config.model_folder import read_added_tokens, read_json
from tessera.errors import ConfigError, ModelError, TesseraError, printable

FILE = "generation_config.json"
MAX_OVERRIDE_CHARS = 2**16
_INT32 = 2**31 - 1


class _Field(NamedTuple):
    name: str  # in SamplingParams
    low: float  # the smallest value
    high: float  # the largest value
    whole: bool = False  # whether it must be an integer


_FIELDS: Mapping[str, _Field] = MappingProxyType(
    {
        "temperature": _Field("temperature", 0, 1e6),
        "top_p": _Field("top_p", 1e-6, 1),
        "top_k": _Field("top_k", -1, _INT32, whole=True),
        "min_p": _Field("min_p", 0, 1),
        "repetition_penalty": _Field("repetition_penalty", 1e-6, 1e6),
        "max_new_tokens": _Field("max_tokens", 1, _INT32, whole=True),
    }
)


def generation_folder(source: str | None, model: Path) -> Path | None:
    """The folder whose generation_config.json is used; None for no file. source: --generation-config. Raises
    ConfigError."""
    if source in (None, "auto"):
        return model
    if source in ("none", "vllm"):
        return None
    folder = Path(str(source)).expanduser()
    if not (folder / FILE).is_file():
        raise ConfigError(
            f"generation_config must be auto, none or a folder with {FILE}, got '{printable(str(source))}'.",
            param="generation_config",
        )
    return folder


def sampling_defaults(
    folder: Path | None,
    override: str | Mapping[str, Any] | None = None,
    authors: Mapping[str, float] = MappingProxyType({}),
) -> dict[str, float | int]:
    """Defaults for fields that a request does not set, by the names of SamplingParams. override: JSON text, or the
    mapping it holds, with generation_config.json's names. authors: of the model, what its file does not say. Raises
    ModelError for the file, ConfigError for override."""
    recommended = {} if folder is None else {**authors, **_recommended(folder)}
    where = "" if folder is None else f"in '{printable(folder / FILE)}'"
    values = _read({name: recommended.get(name) for name in _FIELDS}, where, ModelError)
    return values | _read(_override_fields(override), "in override_generation_config", ConfigError)


def eos_token_ids(
    checkpoint: Checkpoint, tokenizer: Path | None, generation_config: Path | None = None
) -> tuple[int, ...]:
    """The tokens that end a completion: those of generation_config.json, or else config.json, and the tokenizer's.
    tokenizer, generation_config: folders. Raises ModelError."""
    generation = _recommended(generation_config or checkpoint.folder)
    source = generation if generation.get("eos_token_id") is not None else checkpoint.text
    ids = _token_ids(source.get("eos_token_id"), checkpoint.folder)
    own = _tokenizer_eos(tokenizer) if tokenizer is not None else None
    return tuple(dict.fromkeys([*ids, *([] if own is None else [own])]))


def _token_ids(value: Any, folder: Path) -> list[int]:
    ids = [] if value is None else value if isinstance(value, list) else [value]
    if not all(isinstance(token, int) and not isinstance(token, bool) and 0 <= token < 2**31 for token in ids):
        raise ModelError(f"eos_token_id in '{printable(folder)}' is neither a token id nor a list of them.")
    return ids


def _tokenizer_eos(folder: Path) -> int | None:
    token = (read_json(folder, "tokenizer_config.json") or {}).get("eos_token")
    content = token.get("content") if isinstance(token, dict) else token
    return read_added_tokens(folder).get(content) if isinstance(content, str) else None


def _recommended(folder: Path | None) -> Mapping[str, Any]:
    """generation_config.json; empty if there is no folder or file."""
    return {} if folder is None else read_json(folder, FILE) or {}


def _override_fields(override: str | Mapping[str, Any] | None) -> Mapping[str, Any]:
    name = "override_generation_config"
    if override is None:
        return {}
    if isinstance(override, str):
        try:
            override = json.loads(override[:MAX_OVERRIDE_CHARS])
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{name} is not JSON: give it as '{{\"temperature\": 0.7}}'.", param=name) from error
    if not isinstance(override, Mapping):
        raise ConfigError(f"{name} must be a JSON object.", param=name)
    for field in override:
        if field not in _FIELDS:
            raise ConfigError(f"{name} has {str(field)[:40]!r}; it takes {', '.join(_FIELDS)}.", param=name)
    return override


def _read(fields: Mapping[str, Any], where: str, error: type[TesseraError]) -> dict[str, float | int]:
    values: dict[str, float | int] = {}
    for name, value in fields.items():
        if value is None:
            continue
        field = _FIELDS[name]
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= sys.float_info.max:
            raise error(f"{name} {where} is not a number.")
        if not field.low <= value <= field.high or (field.whole and value != int(value)):
            kind = "whole number" if field.whole else "number"
            raise error(f"{name} {where} must be a {kind} from {field.low:g} to {field.high:g}, got {value:g}.")
        values[field.name] = int(value) if field.whole else value
    return values
