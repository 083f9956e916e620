"""A model's folder as configuration sees it: its JSON files, never its weights."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import msgspec

from tessera.errors import ModelError

MAX_JSON_BYTES = 64 * 2**20
_CONTEXT_NAMES = ("max_position_embeddings", "n_positions", "max_sequence_length", "n_ctx", "max_seq_len")


@dataclass(frozen=True)
class Checkpoint:
    """config: config.json as it stands. max_positions: tokens the model was made for; None where it does not say."""

    folder: Path
    config: dict[str, Any]
    vocab_size: int
    max_positions: int | None


def find_folder(model: str) -> Path:
    """The folder that a user named. Raises ModelError with the nearest names beside it."""
    path = Path(model).expanduser()
    if path.is_file():
        raise ModelError(f"'{model}' is a file; name the folder that holds config.json and *.safetensors.")
    if not path.is_dir():
        raise ModelError(
            f"There is no folder '{model}'{_nearest(path)}. Models are loaded from local folders only for now."
        )
    return path


def read_checkpoint(folder: Path, *, weights: bool) -> Checkpoint:
    """Reads config.json. weights: whether *.safetensors must be there. Raises ModelError for what cannot be served."""
    config = _read_config(folder)
    if weights:
        _check_weights(folder)
    text = _text_config(folder, config)
    return Checkpoint(
        folder=folder,
        config=config,
        vocab_size=_count(folder, text, "vocab_size"),
        max_positions=next((_count(folder, text, name) for name in _CONTEXT_NAMES if text.get(name) is not None), None),
    )


def _nearest(path: Path) -> str:
    if not path.parent.is_dir():
        return ""
    try:
        names = [entry.name for entry in path.parent.iterdir() if (entry / "config.json").is_file()]
    except OSError:
        return ""
    near = get_close_matches(path.name, names, n=3, cutoff=0.5)
    return f" (near it: {', '.join(near)})" if near else ""


def _read_config(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    if not path.is_file():
        if any(folder.glob("*.gguf")):
            raise ModelError(
                f"'{folder}' holds a GGUF file, which is not served; give a folder with config.json and *.safetensors."
            )
        raise ModelError(f"'{folder}' has no config.json, so it is not a model's folder{_nearest(folder / '*')}.")
    config = read_json(path)
    architectures = config.get("architectures")
    if not isinstance(architectures, list) or not architectures or not all(isinstance(a, str) for a in architectures):
        raise ModelError(f"'{path}' names no architectures, so it is not known what to build.")
    quantization = config.get("quantization_config")
    if quantization is not None:
        method = quantization.get("quant_method", "unnamed") if isinstance(quantization, dict) else "unnamed"
        raise ModelError(f"'{folder}' is quantized ({method}), which is not served yet; give the unquantized model.")
    return config


def _check_weights(folder: Path) -> None:
    if any(folder.glob("*.safetensors")):
        return
    others = sorted({path.suffix for pattern in ("*.bin", "*.pt", "*.pth", "*.gguf") for path in folder.glob(pattern)})
    if others:
        raise ModelError(f"'{folder}' has its weights as *{', *'.join(others)}; convert them to *.safetensors.")
    raise ModelError(f"'{folder}' has no *.safetensors; add them, or use --load-format dummy for random weights.")


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


def eos_token_ids(checkpoint: Checkpoint, tokenizer: Path | None) -> tuple[int, ...]:
    """Those of generation_config.json, else of config.json, and the tokenizer's own. tokenizer: its folder. Raises
    ModelError."""
    folder, text = checkpoint.folder, _text_config(checkpoint.folder, checkpoint.config)
    path = folder / "generation_config.json"
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


# ---- sampling defaults ----------------------------------------------------------

_SAMPLING = ("temperature", "top_p", "top_k", "min_p")


def sampling_defaults(folder: Path) -> dict[str, float]:
    """What the model's authors recommend (generation_config.json) for requests that do not say. Raises ModelError."""
    path = folder / "generation_config.json"
    generation = read_json(path) if path.is_file() else {}
    found = {name: generation[name] for name in _SAMPLING if generation.get(name) is not None}
    for name, value in found.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ModelError(f"{name} in '{path}' is not a number.")
    return found
