"""How models of late interaction that read pages as images are asked (Faysse et al. 2024, "ColPali: Efficient Document
Retrieval with Vision Language Models"): a text is a query, an image a page, and each token has a vector."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, TypeGuard

from tessera.config.checkpoint import Checkpoint
from tessera.config.model_folder import read_json
from tessera.config.pooler import DenseConfig, PoolerConfig
from tessera.errors import ModelError, printable

_PROJECTION = "embedding_proj_layer"
_NUM_AUGMENTED = 10
"""How many tokens of one kind stand behind a query, which leave the model room to say more of it."""
_PROCESSOR_FILES = ("preprocessor_config.json", "processor_config.json")
_TOKENIZER_FILE = "tokenizer_config.json"
MAX_PROMPT_CHARS = 2**14
MAX_WIDTH = 2**16


@dataclass(frozen=True)
class PromptForm:
    """Of the prompts that a type was trained on, by transformers' defaults."""

    # Before a query.
    query_prefix: str
    # Of a page.
    visual_prompt_prefix: str
    # The text of the token of which some stand behind a query; "": the tokenizer's padding token.
    augmentation: str = ""
    # Behind those.
    end: str = ""
    # The placeholder of a page, where visual_prompt_prefix has none: then that stands between the token that begins
    # texts and `end` behind the page, and such a token is ahead of a query too.
    image: str = ""


_FORMS: Mapping[str, PromptForm] = MappingProxyType(
    {
        "ColQwen2ForRetrieval": PromptForm(
            "Query: ",
            "<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|>Describe the image.<|im_end|><|endoftext|>",
            end="\n",
        ),
        "ColPaliForRetrieval": PromptForm("Question: ", "Describe the image.", end="\n", image="<image>"),
        "ColModernVBertForRetrieval": PromptForm(
            "",
            "<|begin_of_text|>User:<image>Describe the image.<end_of_utterance>\nAssistant:",
            "<end_of_utterance>",
        ),
    }
)


def retrieval_pooler(checkpoint: Checkpoint) -> PoolerConfig:
    """Of one of RETRIEVERS. Raises ModelError."""
    hidden, width = checkpoint.text.get("hidden_size"), checkpoint.config.get("embedding_dim")
    if not (_is_size(hidden) and _is_size(width)):
        raise ModelError(f"hidden_size and embedding_dim in config.json must be numbers up to {MAX_WIDTH:,}.")
    form = _form(checkpoint)
    begin = _token(checkpoint, "bos_token", "which stands ahead of each query") if form.image else ""
    padding = form.augmentation or _token(checkpoint, "pad_token", "some of which stand behind each query")
    page = form.visual_prompt_prefix
    return PoolerConfig(
        ("token_embed",),
        "cls",
        dense=(DenseConfig(_PROJECTION, hidden, width, bias=True, activation="identity", inside=True),),
        dimensions=width,
        around=(begin + form.query_prefix, padding * _NUM_AUGMENTED + form.end),
        image_prompt=f"{form.image}{begin}{page}{form.end}" if form.image else page,
        image_special_tokens=not form.image,
        notes=("each token has a vector, of length 1; a text is a query, and an image a page",),
    )


def _form(checkpoint: Checkpoint) -> PromptForm:
    """As the files say. Raises ModelError."""
    form = _FORMS[checkpoint.config["architectures"][0]]
    for file in _PROCESSOR_FILES:
        said = read_json(checkpoint.folder, file) or {}
        for name in ("query_prefix", "visual_prompt_prefix"):
            text = said.get(name) or getattr(form, name)
            if not isinstance(text, str) or len(text) > MAX_PROMPT_CHARS:
                raise ModelError(f"{name} in '{printable(checkpoint.folder / file)}' is not a text of a prompt's size.")
            form = replace(form, **{name: text})
    return form


def _token(checkpoint: Checkpoint, name: str, use: str) -> str:
    """The text of a token of the tokenizer. use: what it is for, for the message. Raises ModelError."""
    token: Any = (read_json(checkpoint.folder, _TOKENIZER_FILE) or {}).get(name)
    text = token.get("content") if isinstance(token, Mapping) else token
    if not isinstance(text, str):
        where = printable(checkpoint.folder / _TOKENIZER_FILE)
        raise ModelError(f"'{where}' names no {name}, {use}.")
    return text


def _is_size(value: Any) -> TypeGuard[int]:
    return type(value) is int and 1 <= value <= MAX_WIDTH
