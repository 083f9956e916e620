"""The parts of tokenizer.json that several kinds of vocabulary have, as plain JSON values."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from tessera.errors import ModelError
from tessera.gguf.tokenizer.metadata import PREFIX, REMEDY, TokenizerMetadata, TokenType, shorten

SPACE_MARK = "▁"
"""SentencePiece's stand-in for a space."""

Component = dict[str, Any]

_MAX_MERGES = 2**21


def split(pattern: str, behavior: str = "Isolated") -> Component:
    """A pre-tokenizer that cuts where a regular expression matches."""
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": behavior, "invert": False}


def byte_level(*, use_regex: bool) -> Component:
    """Writes bytes in GPT-2's alphabet. use_regex: also cut into words as GPT-2 does."""
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": use_regex}


def digits(*, individual: bool) -> Component:
    return {"type": "Digits", "individual_digits": individual}


def replace(text: str, content: str) -> Component:
    return {"type": "Replace", "pattern": {"String": text}, "content": content}


def sequence(kind: str, parts: Sequence[Component]) -> Component | None:
    """kind: the name of the list in tokenizer.json. None for no parts."""
    if len(parts) < 2:
        return parts[0] if parts else None
    return {"type": "Sequence", kind: list(parts)}


def added_tokens(metadata: TokenizerMetadata, texts: Sequence[str], **flags: Iterable[int]) -> list[Component]:
    """The tokens that are found in a text before anything else is done to it: control tokens and the unknown token,
    which are special, and user-defined ones, which are not. A GGUF file says nothing more of them.

    texts: by token id. flags: the tokens with lstrip or rstrip, which also take the spaces beside them.
    """
    types = metadata.types
    special = {*metadata.ids_of_type(TokenType.CONTROL, TokenType.UNKNOWN)}
    return [
        {
            "id": token_id,
            "content": texts[token_id],
            "single_word": False,
            "lstrip": token_id in flags.get("lstrip", ()),
            "rstrip": token_id in flags.get("rstrip", ()),
            "normalized": False,
            "special": token_id in special,
        }
        for token_id, kind in enumerate(types)
        if token_id in special or kind == TokenType.USER_DEFINED
    ]


def surrounding(metadata: TokenizerMetadata, before: int | None, after: int | None) -> Component | None:
    """A post-processor that puts tokens, by id, before and after a text. None for neither."""
    if before is None and after is None:
        return None
    texts = {token_id: metadata.tokens[token_id] for token_id in (before, after) if token_id is not None}

    def around(name: str, type_id: int) -> list[Component]:
        inner: list[Component] = [{"Sequence": {"id": name, "type_id": type_id}}]
        first = [] if before is None else [{"SpecialToken": {"id": texts[before], "type_id": type_id}}]
        last = [] if after is None else [{"SpecialToken": {"id": texts[after], "type_id": type_id}}]
        return first + inner + last

    return {
        "type": "TemplateProcessing",
        "single": around("A", 0),
        "pair": around("A", 0) + around("B", 1),
        "special_tokens": {text: {"id": text, "ids": [token_id], "tokens": [text]} for token_id, text in texts.items()},
    }


def begin_and_end(metadata: TokenizerMetadata, *, add_bos: bool, add_eos: bool = False) -> Component | None:
    """The post-processor that adds BOS and EOS. add_bos, add_eos: what holds where the file does not say."""
    ids = []
    for name, default in (("bos", add_bos), ("eos", add_eos)):
        wanted = metadata.flag(f"add_{name}_token", default)
        token_id = metadata.token_id(name) if wanted else None
        if wanted and token_id is None and f"{PREFIX}add_{name}_token" in metadata.values:
            raise ModelError(
                f"The GGUF file adds a token to each text ({PREFIX}add_{name}_token), but {PREFIX}{name}_token_id "
                f"names none of its tokens. {REMEDY}"
            )
        ids.append(token_id)
    return surrounding(metadata, *ids)


def merges(metadata: TokenizerMetadata, vocabulary: Sequence[str]) -> list[tuple[str, str]] | None:
    """tokenizer.ggml.merges as pairs, checked against the vocabulary, which is text by token id; None without it."""
    lines = metadata.texts("merges", _MAX_MERGES)
    if lines is None:
        return None
    known, pairs = frozenset(vocabulary), []
    for line in lines:
        at = line.find(" ", 1)  # a piece may begin with a space, not hold one elsewhere
        left, right = line[:at], line[at + 1 :]
        if at < 0 or left not in known or right not in known or left + right not in known:
            raise ModelError(f"The GGUF file merges '{shorten(line)}', which are not two of its tokens. {REMEDY}")
        pairs.append((left, right))
    return pairs


def document(**parts: Any) -> Component:
    """tokenizer.json. parts: those that are not null."""
    empty: Component = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": None,
        "model": None,
    }
    return empty | parts


def bpe(vocabulary: Sequence[str], pairs: Sequence[tuple[str, str]], **flags: Any) -> Component:
    """A BPE model. vocabulary: text by token id."""
    plain: Component = {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
    }
    ids = {text: token_id for token_id, text in enumerate(vocabulary)}
    return plain | flags | {"vocab": ids, "merges": pairs}
