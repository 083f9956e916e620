"""Reads a model folder's tokenizer: tokenizer.json and the files that name its special tokens and chat templates."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tokenizers

from tessera.errors import ModelError

SPECIAL_TOKEN_NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")

_ADDED_TOKEN_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")
# Vocabularies of other libraries, from which transformers can write a tokenizer.json.
_OTHER_VOCABULARIES = ("*.model", "*.tiktoken", "tekken.json", "vocab.json", "vocab.txt")


@dataclass(frozen=True)
class TokenizerFiles:
    """special_tokens: text by name (bos_token, ...). chat_templates: source by name, "default" being the usual one."""

    tokenizer: tokenizers.Tokenizer
    special_tokens: dict[str, str]
    chat_templates: dict[str, str]


def read_tokenizer_files(folder: Path) -> TokenizerFiles:
    """Raises ModelError where there is no tokenizer.json or a file is broken."""
    config = _read_object(folder / "tokenizer_config.json")
    legacy_names = _read_object(folder / "special_tokens_map.json")
    special_tokens = _special_tokens(legacy_names) | _special_tokens(config)
    tokenizer = _read_tokenizer(folder)
    _add_missing_tokens(tokenizer, config.get("added_tokens_decoder"))
    _mark_special(tokenizer, special_tokens)
    return TokenizerFiles(tokenizer, special_tokens, _chat_templates(folder, config.get("chat_template")))


def _read_tokenizer(folder: Path) -> tokenizers.Tokenizer:
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise ModelError(_missing_tokenizer(folder))
    try:
        tokenizer = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing more specific
        raise ModelError(f"{path} cannot be read: {' '.join(str(error).split())}") from error
    # What a trainer left behind here would cut off prompts without a word.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _missing_tokenizer(folder: Path) -> str:
    if not folder.is_dir():
        return f"{folder} is not a folder."
    others = sorted(path.name for pattern in _OTHER_VOCABULARIES for path in folder.glob(pattern))
    if others:
        return (
            f"{folder} has {others[0]} but no tokenizer.json. "
            "Write one with transformers: AutoTokenizer.from_pretrained(folder).save_pretrained(folder)"
        )
    return f"{folder} has no tokenizer.json. Copy the model's there, or name its folder with --tokenizer."


def _read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file; an empty one where there is no file."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path} is not valid JSON.") from error
    if not isinstance(value, dict):
        raise ModelError(f"{path} must hold a JSON object.")
    return value


def _special_tokens(config: dict[str, Any]) -> dict[str, str]:
    contents = {name: _content(config.get(name)) for name in SPECIAL_TOKEN_NAMES}
    return {name: content for name, content in contents.items() if content is not None}


def _content(token: Any) -> str | None:
    content = token.get("content") if isinstance(token, dict) else token
    return content if isinstance(content, str) else None


def _add_missing_tokens(tokenizer: tokenizers.Tokenizer, added: Any) -> None:
    """Tokens that only tokenizer_config.json lists. Those in tokenizer.json are as they are there."""
    if not isinstance(added, dict):
        return
    for token_id, fields in sorted(added.items(), key=lambda item: int(item[0])):
        content = _content(fields)
        if content is None or tokenizer.token_to_id(content) is not None:
            continue
        flags = {name: bool(fields[name]) for name in _ADDED_TOKEN_FLAGS if name in fields}
        tokenizer.add_tokens([tokenizers.AddedToken(content, **flags)])
        if tokenizer.token_to_id(content) != int(token_id):
            raise ModelError(
                f"tokenizer_config.json gives the added token {content!r} the id {token_id}, "
                f"but tokenizer.json has room for it only at {tokenizer.token_to_id(content)}."
            )


def _mark_special(tokenizer: tokenizers.Tokenizer, special_tokens: dict[str, str]) -> None:
    """Make the named tokens special where tokenizer.json has them as ordinary ones; none is added to the vocabulary."""
    special = {token.content for token in tokenizer.get_added_tokens_decoder().values() if token.special}
    for content in special_tokens.values():
        if content not in special and tokenizer.token_to_id(content) is not None:
            tokenizer.add_special_tokens([tokenizers.AddedToken(content, normalized=False, special=True)])


def _chat_templates(folder: Path, in_config: Any) -> dict[str, str]:
    """Files win over the entry in tokenizer_config.json."""
    templates = {}
    if isinstance(in_config, str):
        templates["default"] = in_config
    elif isinstance(in_config, list):
        templates |= {entry["name"]: entry["template"] for entry in in_config if _is_named_template(entry)}
    for path in sorted(folder.glob("additional_chat_templates/*.jinja")):
        templates[path.stem] = path.read_text(encoding="utf-8")
    default = folder / "chat_template.jinja"
    if default.is_file():
        templates["default"] = default.read_text(encoding="utf-8")
    return templates


def _is_named_template(entry: Any) -> bool:
    return isinstance(entry, dict) and isinstance(entry.get("name"), str) and isinstance(entry.get("template"), str)
