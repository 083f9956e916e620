"""Reads a model folder's tokenizer: tokenizer.json and the files that name its special tokens and chat templates."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tokenizers

from tessera.config.model_folder import (
    MAX_TEMPLATE_BYTES,
    MAX_TOKENIZER_BYTES,
    first_line,
    names_in,
    read_bytes,
    read_json,
    read_text,
    refuse_tokenizer,
    shown,
)
from tessera.errors import ModelError

SPECIAL_TOKEN_NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")

_ADDITIONAL = "additional_chat_templates"
_ADDED_TOKEN_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")


@dataclass(frozen=True)
class TokenizerFiles:
    """special_tokens: text by name (bos_token, ...). chat_templates: source by name, "default" being the usual one."""

    tokenizer: tokenizers.Tokenizer
    special_tokens: dict[str, str]
    chat_templates: dict[str, str]


def read_tokenizer_files(folder: Path) -> TokenizerFiles:
    """Raises ModelError where there is no tokenizer.json or a file is broken."""
    config = read_json(folder, "tokenizer_config.json") or {}
    legacy_names = read_json(folder, "special_tokens_map.json") or {}
    special_tokens = _special_tokens(legacy_names) | _special_tokens(config)
    tokenizer = _read_tokenizer(folder)
    _add_missing_tokens(tokenizer, config.get("added_tokens_decoder"))
    _mark_special(tokenizer, special_tokens)
    return TokenizerFiles(tokenizer, special_tokens, _chat_templates(folder, config.get("chat_template")))


def _read_tokenizer(folder: Path) -> tokenizers.Tokenizer:
    refuse_tokenizer(str(folder), names_in(folder))
    content = read_bytes(folder, "tokenizer.json", MAX_TOKENIZER_BYTES)
    try:
        tokenizer = tokenizers.Tokenizer.from_buffer(content or b"")
    except Exception as error:  # the library raises nothing more specific
        raise ModelError(f"'{shown(folder / 'tokenizer.json')}' cannot be read: {first_line(error)}.") from error
    # What a trainer left behind here would cut off prompts without a word.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


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
    if not all(
        re.fullmatch("[0-9]{1,10}", token_id) and isinstance(fields, dict) for token_id, fields in added.items()
    ):
        raise ModelError("added_tokens_decoder in tokenizer_config.json does not say tokens by their ids.")
    for token_id, fields in sorted(added.items(), key=lambda item: int(item[0])):
        content = _content(fields)
        if content is None or tokenizer.token_to_id(content) is not None:
            continue
        flags = {name: bool(fields[name]) for name in _ADDED_TOKEN_FLAGS if name in fields}
        tokenizer.add_tokens([tokenizers.AddedToken(content, **flags)])
        if tokenizer.token_to_id(content) != int(token_id):
            raise ModelError(
                f"tokenizer_config.json gives the added token '{shown(content, 40)}' the id {token_id}, "
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
    named = [(path.stem, f"{_ADDITIONAL}/{path.name}") for path in sorted(folder.glob(f"{_ADDITIONAL}/*.jinja"))]
    for name, file in (*named, ("default", "chat_template.jinja")):
        source = read_text(folder, file, MAX_TEMPLATE_BYTES)
        if source is not None:
            templates[name] = source
    return templates


def _is_named_template(entry: Any) -> bool:
    return isinstance(entry, dict) and isinstance(entry.get("name"), str) and isinstance(entry.get("template"), str)
