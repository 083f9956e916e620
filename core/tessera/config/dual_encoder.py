"""Dual encoders: a text and an image each have one vector, of models that read neither beside the other (CLIP,
SigLIP)."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from tessera.config.checkpoint import Checkpoint
from tessera.config.model_folder import read_json, token_ids
from tessera.config.pooler import Padding, PoolerConfig
from tessera.errors import ModelError, printable

_TOKENIZER_FILE = "tokenizer_config.json"
DUAL_ENCODERS: Mapping[str, bool] = MappingProxyType({"CLIPModel": False, "Siglip2Model": True, "SiglipModel": True})
"""Architectures, and whether their texts are padded to the length that the model was trained with."""
_CANONICAL = ("SiglipTokenizer", "SiglipTokenizerFast")
"""Classes that lower the case of a text and remove its punctuation, of which tokenizer.json may know nothing."""
_LOWERS = ("Siglip2Model",)
"""Architectures whose texts are in lower case, whatever class of tokenizers their files name: transformers gives them
its own, Siglip2Tokenizer."""
_PADS_AHEAD = ("GemmaTokenizer", "GemmaTokenizerFast", "Siglip2Tokenizer")
"""Classes that fill texts up ahead of them unless the file says otherwise."""
_CLIP_WIDTH, _SIGLIP_WIDTH = 512, 768
"""transformers' defaults."""
MAX_WIDTH = 2**16


def dual_pooler(checkpoint: Checkpoint) -> PoolerConfig:
    """Of one of DUAL_ENCODERS. Raises ModelError."""
    pads = DUAL_ENCODERS[checkpoint.config["architectures"][0]]
    text = checkpoint.text
    width = text.get("projection_size") or text.get("hidden_size", _SIGLIP_WIDTH)
    if not pads:
        width = checkpoint.config.get("projection_dim", _CLIP_WIDTH)
    if type(width) is not int or not 1 <= width <= MAX_WIDTH:
        raise ModelError(f"the width of its vectors in config.json is not a number up to {MAX_WIDTH:,}.")
    return PoolerConfig(
        ("embed",),
        "last",
        dimensions=width,
        matryoshka=(),
        padding=_padding(checkpoint) if pads else None,
        canonical=pads and _settings(checkpoint).get("tokenizer_class") in _CANONICAL,
        lower=checkpoint.config["architectures"][0] in _LOWERS,
        image_prompt=_token(checkpoint, "eos_token"),
        image_special_tokens=False,
        reads_images=False,
        notes=("a text or an image has a vector, of length 1; a prompt holds one of the two",),
    )


def _padding(checkpoint: Checkpoint) -> Padding:
    """Raises ModelError."""
    settings = _settings(checkpoint)
    usual = "left" if settings.get("tokenizer_class") in _PADS_AHEAD else "right"
    if settings.get("padding_side", usual) != "right":
        raise ModelError("padding_side in tokenizer_config.json must be right: texts are filled up behind their end.")
    (token,) = token_ids(checkpoint.folder, [_token(checkpoint, "pad_token")])
    if token is None or checkpoint.max_positions is None:
        raise ModelError(f"'{printable(checkpoint.folder)}' has no tokenizer.json with the token that pads its texts.")
    return Padding(token, checkpoint.max_positions)


def _settings(checkpoint: Checkpoint) -> Mapping[str, Any]:
    return read_json(checkpoint.folder, _TOKENIZER_FILE) or {}


def _token(checkpoint: Checkpoint, name: str) -> str:
    """The text of a special token. Raises ModelError."""
    said: Any = _settings(checkpoint).get(name)
    text = said.get("content") if isinstance(said, Mapping) else said
    if not isinstance(text, str) or not text:
        raise ModelError(f"'{printable(checkpoint.folder / _TOKENIZER_FILE)}' names no {name}.")
    return text
