"""tokenizer_config.json from a GGUF file's metadata: the named tokens and the chat templates."""

from __future__ import annotations

from typing import Any

from tessera.errors import ModelError
from tessera.gguf.tokenizer.metadata import PREFIX, REMEDY, TokenizerMetadata, shorten

_TEMPLATE = "tokenizer.chat_template"
# Name in tokenizer_config.json, and the key's name in a GGUF file.
_NAMED_TOKENS = {
    "bos_token": "bos",
    "eos_token": "eos",
    "unk_token": "unknown",
    "sep_token": "seperator",  # as the format spells it
    "pad_token": "padding",
    "cls_token": "cls",
    "mask_token": "mask",
}
_ADDED = ("add_bos_token", "add_eos_token")


def tokenizer_config_values(metadata: TokenizerMetadata) -> dict[str, Any]:
    """tokenizer_config.json as a JSON value. Raises ModelError."""
    config: dict[str, Any] = {}
    if f"{PREFIX}tokens" in metadata.values:
        config |= _named_tokens(metadata)
    for name in _ADDED:
        if PREFIX + name in metadata.values:
            config[name] = metadata.flag(name, default=False)
    template = _chat_template(metadata)
    if template is not None:
        config["chat_template"] = template
    return config


def _named_tokens(metadata: TokenizerMetadata) -> dict[str, str]:
    ids = {name: metadata.token_id(key) for name, key in _NAMED_TOKENS.items()}
    if metadata.model == "bert" and ids["cls_token"] is None:
        ids["cls_token"] = ids["bos_token"]
    return {name: metadata.tokens[token_id] for name, token_id in ids.items() if token_id is not None}


def _chat_template(metadata: TokenizerMetadata) -> str | list[dict[str, str]] | None:
    """The template, or all of them by name if there are others than the default; None without any."""
    templates: dict[str, str] = {}
    for key, template in metadata.values.items():
        name = "default" if key == _TEMPLATE else key.removeprefix(f"{_TEMPLATE}.")
        if key == _TEMPLATE or name != key:
            templates[_text(key, name)] = _text(key, template)
    if not templates or [*templates] == ["default"]:
        return templates.get("default")
    return [{"name": name, "template": template} for name, template in templates.items()]


def _text(key: str, text: Any) -> str:
    if not isinstance(text, str):
        raise ModelError(f"{shorten(key)} in the GGUF file is not a string. {REMEDY}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ModelError(f"{shorten(key)} in the GGUF file holds text that is not UTF-8. {REMEDY}") from error
    return text
