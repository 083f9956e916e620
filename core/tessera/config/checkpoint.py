"""A model's folder as configuration sees it: its JSON files, never its weights."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import msgspec

from tessera.config.context import context_field, left_out, scaled
from tessera.config.refusals import refuse_model
from tessera.errors import ModelError

MAX_JSON_BYTES = 64 * 2**20


@dataclass(frozen=True)
class Checkpoint:
    """config: config.json as it stands. max_positions: tokens the model was made for; None where it does not say.
    most_positions: that the scaling of its rotary embedding allows."""

    folder: Path
    config: dict[str, Any]
    vocab_size: int
    max_positions: int | None
    most_positions: int | None = None


def find_folder(model: str) -> Path:
    """The folder that a user named. Raises ModelError with the nearest names beside it."""
    path = Path(model).expanduser()
    if path.is_file():
        what = "a GGUF file, which is not served" if path.suffix == ".gguf" else "a file"
        raise ModelError(f"'{model}' is {what}; name the folder that holds config.json and *.safetensors.")
    if not path.is_dir():
        raise ModelError(
            f"There is no folder '{model}'{nearest(path)}. A model of the hub is named as ORGANIZATION/NAME."
        )
    return path


def read_checkpoint(folder: Path, *, weights: bool) -> Checkpoint:
    """Reads config.json. weights: whether *.safetensors must be there. Raises ModelError for what cannot be served."""
    refuse_model(str(folder), names_in(folder), weights=weights)
    config = _read_config(folder / "config.json")
    text = _text_config(folder, config)
    field = context_field(text)
    made_for = left_out(text) if field is None else _count(folder, text, field)
    usual, most = (None, None) if made_for is None else scaled(text, made_for)
    return Checkpoint(folder, config, _count(folder, text, "vocab_size"), usual, most)


def names_in(folder: Path) -> list[str]:
    """What lies in a folder. Raises ModelError where it cannot be read."""
    try:
        return [entry.name for entry in folder.iterdir()]
    except OSError as error:
        raise ModelError(f"'{folder}' cannot be read: {error.strerror}.") from error


def nearest(path: Path) -> str:
    """Models' folders beside a path that have almost its name, in words; "" where there are none."""
    if not path.parent.is_dir():
        return ""
    try:
        names = [entry.name for entry in path.parent.iterdir() if (entry / "config.json").is_file()]
    except OSError:
        return ""
    near = get_close_matches(path.name, names, n=3, cutoff=0.5)
    return f" (near it: {', '.join(near)})" if near else ""


def _read_config(path: Path) -> dict[str, Any]:
    config = read_json(path)
    architectures = config.get("architectures")
    if not isinstance(architectures, list) or not architectures or not all(isinstance(a, str) for a in architectures):
        raise ModelError(f"'{path}' names no architectures, so it is not known what to build.")
    quantization = config.get("quantization_config")
    if quantization is not None:
        method = quantization.get("quant_method", "unnamed") if isinstance(quantization, dict) else "unnamed"
        raise ModelError(
            f"'{path.parent}' is quantized ({method}), which is not served yet; give the unquantized model."
        )
    return config


def _text_config(folder: Path, config: dict[str, Any]) -> dict[str, Any]:
    """The language model's part of config.json; models of several modalities nest it."""
    nested = config.get("text_config", config)
    if not isinstance(nested, dict):
        raise ModelError(f"text_config in '{folder / 'config.json'}' is not an object.")
    return nested


def _count(folder: Path, config: Mapping[str, Any], name: str) -> int:
    value = config.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value < 2**31:
        shown = "is missing" if value is None else "is not a positive whole number"
        raise ModelError(f"{name} {shown} in '{folder / 'config.json'}'.")
    return value


# ---- tokens that end an answer -----------------------------------------------


def eos_token_ids(
    checkpoint: Checkpoint, tokenizer: Path | None, generation_config: Path | None = None
) -> tuple[int, ...]:
    """Those of generation_config.json, else of config.json, and the tokenizer's own. tokenizer, generation_config:
    their folders. Raises ModelError."""
    folder, text = checkpoint.folder, _text_config(checkpoint.folder, checkpoint.config)
    path = (generation_config or folder) / "generation_config.json"
    generation = read_json(path) if path.is_file() else {}
    source = generation if generation.get("eos_token_id") is not None else text
    ids = _token_ids(source.get("eos_token_id"), folder)
    own = _tokenizer_eos(tokenizer) if tokenizer is not None else None
    return tuple(dict.fromkeys([*ids, *([] if own is None else [own])]))


def _token_ids(value: Any, folder: Path) -> list[int]:
    ids = [] if value is None else value if isinstance(value, list) else [value]
    if not all(isinstance(token, int) and not isinstance(token, bool) and 0 <= token < 2**31 for token in ids):
        raise ModelError(f"eos_token_id in '{folder}' is neither a token id nor a list of them.")
    return ids


def _tokenizer_eos(folder: Path) -> int | None:
    path = folder / "tokenizer_config.json"
    settings = read_json(path) if path.is_file() else {}
    token = settings.get("eos_token")
    content = token.get("content") if isinstance(token, dict) else token
    if not isinstance(content, str):
        return None
    return _added_tokens(folder / "tokenizer.json").get(content)


class _AddedToken(msgspec.Struct):
    id: int
    content: str


class _AddedTokens(msgspec.Struct):
    """Of a tokenizer.json nothing else is decoded: it may have megabytes."""

    added_tokens: list[_AddedToken] = []


def _added_tokens(path: Path) -> dict[str, int]:
    """Special and added tokens by their text."""
    if not path.is_file():
        return {}
    try:
        found = msgspec.json.decode(_read_bytes(path), type=_AddedTokens)
    except msgspec.MsgspecError as error:
        raise ModelError(f"'{path}' is not a tokenizer's JSON: {error}.") from error
    return {token.content: token.id for token in found.added_tokens}


# ---- files -------------------------------------------------------------------


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object in a file. Raises ModelError where it cannot be read, is too large, broken or no object."""
    try:
        content = json.loads(_read_bytes(path))
    except (ValueError, RecursionError) as error:
        raise ModelError(f"'{path}' is not valid JSON: {_first_line(error)}.") from error
    if not isinstance(content, dict):
        raise ModelError(f"'{path}' is not a JSON object.")
    return content


def _read_bytes(path: Path) -> bytes:
    try:
        if path.stat().st_size > MAX_JSON_BYTES:
            raise ModelError(f"'{path}' has more than {MAX_JSON_BYTES // 2**20} MiB, too many for a model's settings.")
        return path.read_bytes()
    except OSError as error:
        raise ModelError(f"'{path}' cannot be read: {error.strerror}.") from error


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
