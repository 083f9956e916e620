"""A tokenizer of the tokenizers library as the keys tokenizer.* of a GGUF file.

A GGUF file says how a text is cut into words by a name alone, so the name is one whose tokenizer, as the file is read
again, cuts the texts of `probes` as the model's own does; without one the tokenizer is not written.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import tokenizers

from tessera.errors import ModelError, printable
from tessera.gguf.tokenizer import components, tokenizer_json
from tessera.gguf.tokenizer.components import bpe, sequence
from tessera.gguf.tokenizer.metadata import PREFIX, TokenType
from tessera.gguf.tokenizer.pre_tokenizers import PRE_TOKENIZERS
from tessera.gguf.writing.probes import PROBES
from tessera.gguf.writing.settings import Metadata

_NAMED = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
"""What the tokens that config files name are called in a GGUF file."""
_TURN_ENDS = "eot"
_BYTE = "<0x{:02X}>"
_UNFIT = "the model's tokenizer cannot be written into a GGUF file: "


def vocabulary_of(
    content: bytes, named: Mapping[str, str], ends: Sequence[int], size: int, templates: Mapping[str, str]
) -> Metadata:
    """content: of tokenizer.json. named: texts of special tokens, by their names in tokenizer_config.json. ends: ids of
    tokens that end an answer, the first of them first. size: tokens that the model has. templates: chat templates by
    name. Raises ModelError for a tokenizer that a GGUF file cannot say."""
    document = json.loads(content)
    model = document["model"]
    if model["type"] != "BPE":
        raise ModelError(f"{_UNFIT}it is of the kind {str(model['type'])[:40]}, and only BPE is written.")
    tokenizer = tokenizers.Tokenizer.from_str(content.decode())
    metadata = {**_tokens(document, size), **_special(tokenizer, named, ends), **_templates(templates)}
    tokens = metadata[f"{PREFIX}tokens"]
    if len(tokens) > size:
        raise ModelError(f"{_UNFIT}it has {len(tokens):,} tokens, and the model's embedding {size:,}.")
    forms = _pieces(document, len(tokens)) if model.get("byte_fallback") else _byte_level(document, tokenizer)
    other = None
    for form in forms:
        written = {**metadata, **{f"{PREFIX}{key}": value for key, value in form.items()}}
        if (other := _differs(tokenizer, written)) is None:
            return written
    if other is None:
        raise ModelError(f"{_UNFIT}no name in GGUF stands for the way in which it cuts text into words.")
    raise ModelError(f"{_UNFIT}read from it, it would make other tokens of '{printable(other, 40)}'.")


def _tokens(document: Mapping[str, Any], size: int) -> Metadata:
    """Texts and types by id. Ids without a token get a name, as converters give them one."""
    texts: dict[int, str] = {number: text for text, number in document["model"]["vocab"].items()}
    types = dict.fromkeys(texts, TokenType.NORMAL)
    if document["model"].get("byte_fallback"):
        in_bytes = {_BYTE.format(value) for value in range(256)}
        types |= {number: TokenType.BYTE for number, text in texts.items() if text in in_bytes}
    for token in document["added_tokens"]:
        texts[token["id"]] = token["content"]
        types[token["id"]] = TokenType.CONTROL if token["special"] else TokenType.USER_DEFINED
    count = max(size, max(texts) + 1)
    unknown = document["model"].get("unk_token")
    types |= {number: TokenType.UNKNOWN for number, text in texts.items() if unknown is not None and text == unknown}
    return {
        f"{PREFIX}tokens": [texts.get(number, f"[PAD{number}]") for number in range(count)],
        f"{PREFIX}token_type": [int(types.get(number, TokenType.UNUSED)) for number in range(count)],
    }


def _special(tokenizer: tokenizers.Tokenizer, named: Mapping[str, str], ends: Sequence[int]) -> Metadata:
    """The tokens with a name of their tokenizer, and whether they are put around a text."""
    numbers = {key: tokenizer.token_to_id(named[name]) for name, key in _NAMED.items() if name in named}
    ids: dict[str, int] = {key: number for key, number in numbers.items() if number is not None}
    if ends:
        ids["eos"] = ends[0]
    others = [number for number in ends[1:] if number != ids["eos"]]
    ids |= {_TURN_ENDS: others[0]} if others else {}
    around = tokenizer.encode("a", add_special_tokens=True).ids
    return {
        **{f"{PREFIX}{key}_token_id": number for key, number in ids.items()},
        f"{PREFIX}add_bos_token": "bos" in ids and around[0] == ids["bos"],
        f"{PREFIX}add_eos_token": "eos" in ids and around[-1] == ids["eos"],
    }


def _templates(templates: Mapping[str, str]) -> Metadata:
    base = "tokenizer.chat_template"
    return {base if name == "default" else f"{base}.{name}": text for name, text in templates.items()}


def _byte_level(document: Mapping[str, Any], tokenizer: tokenizers.Tokenizer) -> Iterator[Metadata]:
    """With each name that stands for the way in which the tokenizer cuts texts; of names for one way, the first."""
    merges = [line if isinstance(line, str) else " ".join(line) for line in document["model"]["merges"]]
    cuts, tried = _cuts(tokenizer), []
    for name, family in PRE_TOKENIZERS.items() if cuts else ():
        if family in tried:
            continue
        tried.append(family)
        steps = json.dumps(
            components.document(pre_tokenizer=sequence("pretokenizers", family.steps), model=bpe([], []))
        )
        if _cuts(tokenizers.Tokenizer.from_str(steps)) == cuts:
            yield {"model": "gpt2", "pre": name, "merges": merges}


def _cuts(tokenizer: tokenizers.Tokenizer) -> list[Any] | None:
    """The words of each of the texts; None of a tokenizer that does not cut."""
    cut = tokenizer.pre_tokenizer
    return None if cut is None else [cut.pre_tokenize_str(text) for text in PROBES]


def _pieces(document: Mapping[str, Any], count: int) -> Iterator[Metadata]:
    """With a score for each piece, the higher the sooner a merge makes it; and with the merges themselves."""
    pairs = [tuple(line.split(" ")) if isinstance(line, str) else tuple(line) for line in document["model"]["merges"]]
    ranks: dict[str, int] = {}
    for rank, pair in enumerate(pairs):
        ranks.setdefault("".join(pair), rank)
    vocabulary = document["model"]["vocab"]
    scores = [-1e6] * count
    for text, number in vocabulary.items():
        scores[number] = -float(ranks.get(text, len(pairs)))
    for prefix in (True, False):
        yield {"model": "llama", "pre": "default", "scores": scores, "add_space_prefix": prefix}
    yield {"model": "gemma4", "merges": [" ".join(pair) for pair in pairs]}


def _differs(tokenizer: tokenizers.Tokenizer, metadata: Metadata) -> str | None:
    """The first of the texts that the file's tokenizer makes other tokens of; None without one."""
    try:
        read = tokenizers.Tokenizer.from_str(tokenizer_json(metadata).decode())
    except ModelError:
        return ""
    special = [text for text in tokenizer.get_added_tokens_decoder().values() if not text.content.isspace()]
    probes = [*PROBES, *(f"a {token.content} b{token.content}\n" for token in special[:64])]
    for text, first, second in zip(probes, tokenizer.encode_batch(probes), read.encode_batch(probes), strict=True):
        if first.ids != second.ids:
            return text
    return None
